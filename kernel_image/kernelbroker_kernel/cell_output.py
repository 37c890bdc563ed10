"""What a cell has written belongs to it: it is sent before the cell's end, whichever way it was written."""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress
from typing import Any

from .time_limit import time_limit

_NAMES = ("stdout", "stderr")
_FLUSH_S = 1.0

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
        """Empty the buffers of C's standard output, of `sys.__stdout__`, and of what stands in for ours.

        They lead to the pipes of the kernel, which its own streams read at the end of the cell.
        """
        if _c_stdout is not None:
            _libc.fflush(_c_stdout)
        for name, own in self._streams.items():
            first, now = getattr(sys, f"__{name}__", None), getattr(sys, name, None)
            with suppress(Exception):  # closed
                first.flush()  # type: ignore[union-attr]
            if now is not own and now is not first:  # it may be the user's code
                with suppress(BaseException), time_limit(_FLUSH_S):
                    now.flush()  # type: ignore[union-attr]

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
