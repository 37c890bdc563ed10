"""What cells are told of the machine: the sandbox's limits, where the system's files show all of the host.

`os.cpu_count()`, `psutil.cpu_count()` and `psutil.virtual_memory()` tell the limits. Libraries size
themselves by them: as many processes as there are processors, as much data as there is memory. Programs
that a cell starts, and `os.sched_getaffinity`, still see the host.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import os
from functools import wraps
from typing import Any

from .contract import CPUS_VARIABLE, MEMORY_VARIABLE


class Limits:
    """The limits that are told.

    Attributes:
        cpus: processors; None for those of the host.
        memory: bytes; None for the host's.
    """

    cpus: float | None = None
    memory: int | None = None


def tell_limits() -> None:
    """Replace the functions, which then tell the limits of the environment, and later those of `change`."""
    with contextlib.suppress(ValueError):
        cpus, memory = os.environ.get(CPUS_VARIABLE), os.environ.get(MEMORY_VARIABLE)
        change(float(cpus or 0) or None, int(memory or 0) or None)
    for name in ("cpu_count", "process_cpu_count"):
        if hasattr(os, name):
            setattr(os, name, _lower(getattr(os, name)))
    with contextlib.suppress(ImportError):
        psutil: Any = importlib.import_module("psutil")
        psutil.cpu_count = _lower(psutil.cpu_count)
        psutil.virtual_memory = _in_sandbox(psutil)


def change(cpus: float | None, memory: int | None) -> None:
    """Tell other limits from now on, where they are lower."""
    for name, value in (("cpus", cpus), ("memory", memory)):
        known = getattr(Limits, name)
        if value is not None and (known is None or value < known):
            setattr(Limits, name, value)


def _lower(count: Any) -> Any:
    @wraps(count)
    def cpu_count(*args: Any, **kwargs: Any) -> int | None:
        found: int | None = count(*args, **kwargs)
        if found is None or Limits.cpus is None:
            return found
        return min(found, max(1, math.ceil(Limits.cpus)))

    return cpu_count


def _in_sandbox(psutil: Any) -> Any:
    stock = psutil.virtual_memory

    @wraps(stock)
    def virtual_memory() -> Any:
        found = stock()
        total = Limits.memory
        if total is None or total >= found.total:
            return found
        own = psutil.Process()
        used = 0
        for process in (own, *own.children(recursive=True)):
            with contextlib.suppress(psutil.Error):  # it has ended
                used += process.memory_info().rss
        used = min(used, total)
        nothing = dict.fromkeys(found._fields, 0)
        told = {
            "total": total,
            "available": total - used,
            "free": total - used,
            "percent": round(100 * used / total, 1),
            "used": used,
            "active": used,
        }
        return found._replace(**(nothing | told))

    return virtual_memory
