"""The file by which clients of the same user find the broker: its URL and its token."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import tempfile
from pathlib import Path

from kernelbroker.protocol.runtime_file import runtime_file

logger = logging.getLogger(__name__)


def write(url: str, token: str | None) -> Path | None:
    """Write the file by which clients of this user find the broker; the newest broker replaces it."""
    path = runtime_file(os.environ, os.getuid())
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent)  # mode 0600
        with os.fdopen(handle, "w") as file:
            json.dump({"url": url, "token": token, "pid": os.getpid()}, file)
        Path(name).replace(path)
    except OSError as exc:
        logger.warning(
            "%s cannot be written (%s): give clients the URL and the token, as KERNELBROKER_URL and "
            "KERNELBROKER_TOKEN",
            path,
            exc.strerror,
        )
        return None
    return path


def remove(path: Path) -> None:
    """Remove the file, unless another broker has replaced it."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        if json.loads(path.read_text())["pid"] == os.getpid():
            path.unlink()
