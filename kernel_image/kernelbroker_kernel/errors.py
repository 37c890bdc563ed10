"""The errors that this package raises on purpose.

`Refused` answers a request of the broker. `CellError` and `Interrupted` end a cell in another language than
Python (or an installation), and are shown without Python's own frames.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

_REASONS: dict[int, tuple[str, str]] = {
    errno.ENOENT: ("not_found", "there is no such file or directory"),
    errno.ENOTDIR: ("conflict", "a part of the path is no directory; links are not followed"),
    errno.ELOOP: ("conflict", "it is a symbolic link, and links are not followed"),
    errno.EISDIR: ("conflict", "it is a directory"),
    errno.EEXIST: ("conflict", "it exists already, and is no directory"),
    errno.ENOTEMPTY: ("conflict", "the directory is not empty; pass recursive=true to delete it"),
    errno.EACCES: ("conflict", "its permissions do not allow it; a cell can chmod it"),
    errno.EPERM: ("conflict", "its permissions do not allow it; a cell can chmod it"),
    errno.EROFS: (
        "conflict",
        "it is read-only; what is below /data and /tmp can be written, but not /data/shared and a project "
        "that is mounted read-only",
    ),
    errno.EBUSY: ("conflict", "it is in use, or mounted there"),
    errno.EXDEV: ("conflict", "files cannot be moved into or out of what is mounted there"),
    errno.ENXIO: ("conflict", "it is not a regular file"),
    errno.EINVAL: ("bad_request", "a directory cannot be moved into itself"),
    errno.ENAMETOOLONG: ("bad_request", "the path, or a name in it, is too long"),
    errno.ENOSPC: ("too_large", "there is no space left in the workspace; delete something"),
    errno.EDQUOT: ("too_large", "the workspace is full; delete something"),
    errno.EFBIG: ("too_large", "the file is larger than a sandbox may have"),
}


class Refused(Exception):
    """A request of the broker is refused. `code` is one of the broker's error codes."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


@contextmanager
def refusing(path: str) -> Iterator[None]:
    """Translate an OSError about `path` into `Refused`."""
    try:
        yield
    except OSError as error:
        code, reason = _REASONS.get(error.errno or 0, ("conflict", error.strerror or "it failed"))
        shown = path if len(path) <= 200 else f"{path[:200]}…"
        raise Refused(code, f"{shown or '.'}: {reason}") from error


class CellError(Exception):
    """The failure of a cell, shown as `name: message`; `trace` is written to standard error."""

    def __init__(self, name: str, message: str, trace: str = "") -> None:
        super().__init__(message)
        # IPython takes an error's name from its class.
        self.__class__ = type(name if name.isidentifier() else "Error", (CellError,), {})
        self._trace = trace or f"{name}: {message}"

    def _render_traceback_(self) -> list[str]:
        return self._trace.splitlines()


class Interrupted(KeyboardInterrupt):
    """A KeyboardInterrupt that is shown without frames."""

    def _render_traceback_(self) -> list[str]:
        return [KeyboardInterrupt.__name__]


Interrupted.__name__ = KeyboardInterrupt.__name__
