"""The memory that this broker may count on, and the number of sandboxes that it is enough for."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_PER_SANDBOX = 128 * 1024**2
"""A forked one with pandas uses half of this; one in a container, or with large tables, more."""
_FEWEST, _MOST = 10, 200
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""The limit of a container, as it sees it itself, for both versions of control groups."""


def default_pool_size() -> int:
    """As many sandboxes as fit into half of the memory, within bounds."""
    return min(max(_FEWEST, memory_bytes() // 2 // _PER_SANDBOX), _MOST)


def memory_bytes(cgroup_limits: Iterable[Path] = _CGROUP_LIMITS) -> int:
    """The machine's memory, or the limit of the container that the broker is in, if that is less."""
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for path in cgroup_limits:
        try:
            found.append(int(path.read_text()))
        except (OSError, ValueError):  # not there, or "max"
            continue
    return min(found)
