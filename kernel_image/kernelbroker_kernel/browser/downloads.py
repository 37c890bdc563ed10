"""Files that pages send, in the directory `downloads` of the workspace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playwright.async_api import Download, Error

from .. import environment
from ..errors import refusing

DOWNLOADS = "downloads"
"""Directory of the workspace."""
_MAX_NAME = 150
_MAX_TEXT = 500


async def save(download: Download) -> dict[str, Any]:
    """Save a download. Never raises: returns ``{"url", "path", "size"}``, or ``{"url", "error"}``."""
    url = download.url[:_MAX_TEXT]
    try:
        target = free_path(download.suggested_filename)
        target.parent.mkdir(parents=True, exist_ok=True)
        await download.save_as(target)
        size = target.stat().st_size
    except (Error, OSError) as error:
        return {"url": url, "error": str(error).splitlines()[0][:_MAX_TEXT]}
    return {"url": url, "path": str(target.relative_to(environment.WORKSPACE)), "size": size}


def free_path(suggested: str) -> Path:
    """A path for the name that a page suggests, where nothing is yet."""
    name = Path(suggested.replace("\\", "/")).name.replace("\0", "").lstrip(".")[-_MAX_NAME:]
    directory = Path(environment.WORKSPACE, DOWNLOADS)
    path, number = directory / (name or "download"), 1
    stem, suffix = path.stem, path.suffix
    while path.exists() or path.is_symlink():
        number += 1
        path = directory / f"{stem}-{number}{suffix}"
    return path


def write(path: Path, content: bytes) -> None:
    """Write a new file, and its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("xb") as file:
        file.write(content)


def move(path: Path, target: Path) -> None:
    """Move a download. Raises Refused."""
    with refusing(target.name):
        target.parent.mkdir(parents=True, exist_ok=True)
        path.replace(target)
