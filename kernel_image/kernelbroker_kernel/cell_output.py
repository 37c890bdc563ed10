"""What a cell has written belongs to it: it is sent before the cell's end, whichever way it was written."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Any

_NAMES = ("stdout", "stderr")

_libc: Any = None
_c_stdout: Any = None
with suppress(OSError, ValueError):  # another C library
    _libc = ctypes.CDLL(None)
    _c_stdout = ctypes.c_void_p.in_dll(_libc, "stdout")


class CellOutput:
    """The kernel's streams, as they are when it starts."""

    def __init__(self) -> None:
        self._streams = {name: getattr(sys, name) for name in _NAMES}

    def flush(self) -> None:
        """Send what waits in buffers: of C's standard output, of `sys.__stdout__`, of what replaces ours.

        What leads to the pipes of the kernel is read by its own streams, when these are flushed.
        """
        if _c_stdout is not None:
            _libc.fflush(_c_stdout)
        for name in _NAMES:
            for stream in (*_named(name), self._streams[name]):
                with suppress(Exception):  # of user code, or closed
                    stream.flush()

    def restore(self) -> list[str]:
        """Put the kernel's streams back. Returns the names of those that the cell has replaced."""
        replaced = [name for name in _NAMES if getattr(sys, name, None) is not self._streams[name]]
        for name in replaced:
            setattr(sys, name, self._streams[name])
        return replaced

    def tell(self, replaced: list[str]) -> None:
        """Say on standard error that streams were put back, in one line."""
        names = " and ".join(f"sys.{name}" for name in replaced)
        verb = "was" if len(replaced) == 1 else "were"
        text = f"[{names} {verb} replaced and not restored: later cells print again]\n"
        with suppress(Exception):
            self._streams["stderr"].write(text)


def _named(name: str) -> tuple[Any, Any]:
    """What Python calls by this name, at first and now. A cell can delete both."""
    return getattr(sys, f"__{name}__", None), getattr(sys, name, None)
