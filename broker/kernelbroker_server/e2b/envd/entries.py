"""Entries of directories in E2B's form."""

from __future__ import annotations

import stat
from datetime import UTC, datetime
from typing import Any

from ...service.filesystem import EntryDetails
from .places import Place

_TYPES = {
    "file": "FILE_TYPE_FILE",
    "directory": "FILE_TYPE_DIRECTORY",
    "symlink": "FILE_TYPE_SYMLINK",
    "other": "FILE_TYPE_UNSPECIFIED",
}
_OWNER = "user"


def entry_info(details: EntryDetails, place: Place) -> dict[str, Any]:
    """Return a `filesystem.EntryInfo`.

    Args:
        place: the entry, or a directory above it.
    """
    path = place.shown(details.path)
    info = {
        "name": path.rsplit("/", 1)[-1],
        "type": _TYPES[details.kind],
        "path": path.rstrip("/") or "/",
        "size": str(details.size),
        "mode": stat.S_IMODE(details.mode),
        "permissions": stat.filemode(details.mode),
        "owner": _OWNER,
        "group": _OWNER,
        "modifiedTime": _time(details.modified_at),
    }
    if details.target is not None:
        info |= {"symlinkTarget": place.shown_target(details.target), "isSymlink": True}
    if details.metadata:
        info["metadata"] = details.metadata
    return info


def _time(timestamp: float) -> str:
    try:
        moment = datetime.fromtimestamp(timestamp, UTC)
    except (OverflowError, ValueError, OSError):  # user code can set any time
        moment = datetime.fromtimestamp(0, UTC)
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
