"""Files that come with the package, in memory, with their compressed forms; and how they are sent.

The console and the documentation have such files. None of them needs a token.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from .base import Authenticated

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".woff2": "font/woff2",
}
_COMPRESSED_ALREADY = (".png", ".woff2")
_MIN_COMPRESSED = 1024
"""Smaller files are sent as they are."""
_YEAR_S = 31_536_000
_ACCEPTS_GZIP = re.compile(r"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))")


@dataclass(frozen=True, slots=True)
class File:
    """A file. `gzipped` is None if compressing it does not help."""

    content_type: str
    data: bytes
    gzipped: bytes | None
    etag: str


class StaticFiles:
    """The files of a directory and of those below it, by path. They are read when they are first used."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.names = frozenset(
            str(path.relative_to(directory))
            for path in directory.rglob("*")
            if path.suffix in _TYPES and path.is_file()
        )
        self._cached = cache(self._read)

    def get(self, name: str) -> File | None:
        """Return a file; None if there is no such file."""
        return self._cached(name) if name in self.names else None

    def _read(self, name: str) -> File:
        path = self._directory / name
        data = path.read_bytes()
        compresses = len(data) >= _MIN_COMPRESSED and path.suffix not in _COMPRESSED_ALREADY
        packed = gzip.compress(data, mtime=0) if compresses else None
        etag = hashlib.sha256(data).hexdigest()[:20]
        return File(_TYPES[path.suffix], data, packed, etag)


class StaticHandler(Authenticated):
    """Sends files to anybody, with the headers that pages of this broker have."""

    requires_token = False

    def set_page_headers(self, policy: str, caching: str) -> None:
        """Set the headers that bound what a page may do.

        Args:
            policy: its Content-Security-Policy.
            caching: its Cache-Control.
        """
        self.set_header("Content-Security-Policy", policy)
        self.set_header("Cache-Control", caching)
        self.set_header("Referrer-Policy", "no-referrer")
        self.set_header("Cross-Origin-Opener-Policy", "same-origin")
        self.set_header("X-DNS-Prefetch-Control", "off")
        self.set_header("Permissions-Policy", "camera=(), geolocation=(), microphone=()")

    def send_file(self, file: File, policy: str, *, changes: bool) -> None:
        """Finish with a file, compressed if the client accepts that; with 304 if the client has it.

        Args:
            changes: a file of this name may have another content in another version.
        """
        caching = "no-cache" if changes else f"public, max-age={_YEAR_S}, immutable"
        self.set_page_headers(policy, caching)
        self.set_header("Content-Type", file.content_type)
        self.set_header("Vary", "Accept-Encoding")
        self.set_header("ETag", f'"{file.etag}"')
        if self.check_etag_header():
            self.set_status(304)
            return
        if file.gzipped is not None and _ACCEPTS_GZIP.search(
            self.request.headers.get("Accept-Encoding", "")
        ):
            self.set_header("Content-Encoding", "gzip")
            self.finish(file.gzipped)
        else:
            self.finish(file.data)
