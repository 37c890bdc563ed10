"""The limit of open files: how many the broker needs, and the most that it may have."""

from __future__ import annotations

import contextlib
import resource

_OWN = 1024
"""Connections, files of the store, libraries."""
_ENOUGH = 65_536
"""No more, since some programs that the broker starts look at every number up to the limit."""
_PER_SANDBOX = 16
"""Descriptors of its processes, connections to its gateway, and those of its clients."""


def files_needed(sandboxes: int) -> int:
    """How many files a broker with so many sandboxes may have open, about."""
    return _OWN + _PER_SANDBOX * sandboxes


def raise_limit() -> None:
    """Let this process open as many files as the system allows it, and it can need.

    Shells give 1024 to programs that call select(2), which the broker does not. Sandboxes have limits of
    their own.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
