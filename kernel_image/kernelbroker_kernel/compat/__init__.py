"""Everything that uses private names of ipykernel, IPython, jupyter_server and matplotlib.

These names can change in any release, and an image may have other versions than ours. Each class or
function here declares the names that it needs with `overrides` or `missing`. If a name is missing, it is
logged, the stock class is used, and the kernel starts. The tests assert that the installed versions have
all the names.

`gateway` is for the gateway's process, `kernel`, `streams`, `fonts` and `figures` for the kernel's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T", bound=type)

OVERRIDDEN: list[tuple[type, tuple[str, ...]]] = []
"""The classes that `missing` was called with, and the private names that each must have."""


def missing(owner: type, *names: str) -> list[str]:
    """Return the names that `owner` lacks: it has no such attribute, and its methods do not use it."""
    OVERRIDDEN.append((owner, names))
    return [name for name in names if not hasattr(owner, name) and not _uses(owner, name)]


def overrides(owner: type, *names: str) -> Callable[[T], T]:
    """Class decorator: use a class only if `owner` has all the private names that the class needs.

    Otherwise the class's first base is used.
    """

    def decorate(cls: T) -> T:
        if lacking := missing(owner, *names):
            warn(f"{cls.__name__} is not used: {owner.__name__} has no {', '.join(lacking)}")
            return cast(T, cls.__bases__[0])
        return cls

    return decorate


def named_like(stock: type) -> Callable[[T], T]:
    """Class decorator: give a subclass the name and the module of the stock class.

    Libraries recognise a notebook by these: `'zmq' in str(type(get_ipython()))` (pandas),
    `type(get_ipython()).__name__ == 'ZMQInteractiveShell'` (many).
    """

    def rename(cls: T) -> T:
        cls.__name__, cls.__qualname__ = stock.__name__, stock.__qualname__
        cls.__module__ = stock.__module__
        return cls

    return rename


def warn(message: str) -> None:
    """Write a line to the broker's log. `sys.stderr` may already be the session's."""
    with contextlib.suppress(OSError, ValueError):
        os.write(sys.stderr.fileno(), f"kernelbroker_kernel: {message}\n".encode(errors="replace"))


def _uses(owner: type, name: str) -> bool:
    methods = (method for kind in owner.__mro__ for method in vars(kind).values())
    codes = (getattr(method, "__code__", None) for method in methods)
    return any(code is not None and name in code.co_names for code in codes)
