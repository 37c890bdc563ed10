"""The files of the console, in memory, with their compressed forms.

`npm run build` in `broker/console` makes them; they are part of this package.
"""

from __future__ import annotations

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_STATIC = Path(__file__).parent / "static"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_MIN_COMPRESSED = 1024
"""Smaller files are sent as they are."""


@dataclass(frozen=True, slots=True)
class File:
    """A file. `gzipped` is None if compressing it does not help."""

    content_type: str
    data: bytes
    gzipped: bytes | None
    etag: str


class ConsoleFiles:
    """The files by name."""

    def __init__(self, directory: Path = _STATIC) -> None:
        self._directory = directory
        self._names = {each.name for each in directory.glob("*") if each.suffix in _TYPES}
        self.get = cache(self._read)

    def _read(self, name: str) -> File | None:
        """Return a file; None if there is no such file."""
        if name not in self._names:
            return None
        path = self._directory / name
        data = path.read_bytes()
        packed = gzip.compress(data, mtime=0) if len(data) >= _MIN_COMPRESSED else None
        etag = hashlib.sha256(data).hexdigest()[:20]
        return File(_TYPES[path.suffix], data, packed, etag)
