"""Imports what a kernel imports before there is a kernel, in a process that kernels are forked from.

Modules ask at their import for the shell, the encoding of the output or the main module, and keep the
answer. So they get the answers that they would get in a kernel.
"""

from __future__ import annotations

import builtins
import importlib
import io
import sys
import types
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from .unused_imports import DEBUGGER, left_out

_ON_START = (
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "faulthandler",
    "ipykernel.debugger",
    "kernelbroker_kernel.hooks",
    "pygments.formatters.html",
    "pygments.formatters.terminal256",
    "pygments.lexers.python",
    "stack_data",
    "tornado.platform.asyncio",
)
"""What IPython and ipykernel import while a kernel starts."""

_filters: list[Any] = []
"""The filters of warnings that the modules have added."""


class ShellToCome:
    """What `get_ipython` returns: pandas looks whether it has a kernel."""

    kernel = None


class StreamToCome(io.TextIOBase):
    """Standard output or error. Modules that keep it write to the kernel's stream later."""

    encoding = "UTF-8"  # ipykernel's way to write it, which pandas shows

    def __init__(self, name: str) -> None:
        self._name = name

    def _stream(self) -> Any:
        stream = getattr(sys, self._name)
        return getattr(sys, f"__{self._name}__") if stream is self else stream

    def write(self, text: str) -> int:
        written: int = self._stream().write(text)
        return written

    def flush(self) -> None:
        self._stream().flush()

    def writable(self) -> bool:
        return True


def import_early(import_all: Callable[[], None]) -> None:
    """Import what a kernel imports while it starts, and what `import_all` imports in a kernel."""
    with left_out(*DEBUGGER):
        for name in _ON_START:
            importlib.import_module(name)
    before = list(warnings.filters)
    with _as_in_a_kernel():
        import_all()
    _filters[:] = [each for each in warnings.filters if each not in before]


def restore_filters() -> None:
    """Put the filters of early imports first, since the shell has added its own by now."""
    if _filters:
        others = [each for each in warnings.filters if each not in _filters]
        with warnings.catch_warnings():  # which makes the change known to the interpreter
            pass
        warnings.filters[:] = [*_filters, *others]  # type: ignore[index]


@contextmanager
def _as_in_a_kernel() -> Iterator[None]:
    modules: dict[str, Any] = sys.modules
    streams, main = (sys.stdout, sys.stderr), modules["__main__"]
    builtins.get_ipython = ShellToCome  # type: ignore[attr-defined]
    sys.ps1, sys.ps2 = "In : ", "...: "
    sys.stdout, sys.stderr = StreamToCome("stdout"), StreamToCome("stderr")
    modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        modules["__main__"] = main
        sys.stdout, sys.stderr = streams
        del sys.ps1, sys.ps2
        del builtins.get_ipython  # type: ignore[attr-defined]
