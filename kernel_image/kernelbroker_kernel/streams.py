"""Standard output and error for the programs that a cell runs.

The kernel's own streams are in `compat.streams`. Descriptors 1 and 2 of the kernel are pipes that lead
to them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress


@contextmanager
def outputs() -> Iterator[list[int | None]]:
    """Standard output and error for a program: separate open files on the kernel's pipes.

    Inherited descriptors share their flags with the kernel's. Node.js makes them non-blocking for
    good, and a later writer loses what does not fit into the pipe at once.
    """
    ends: list[int | None] = [None, None]
    with ExitStack() as opened:
        for place, number in enumerate((1, 2)):
            with suppress(OSError):  # the user has closed it
                if stat.S_ISFIFO(os.fstat(number).st_mode):
                    end = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_CLOEXEC)
                    opened.callback(os.close, end)
                    ends[place] = end
        yield ends


def make_blocking() -> None:
    """Undo changes of a program to the pipes that it inherited."""
    for number in (1, 2):
        with suppress(OSError):
            os.set_blocking(number, True)
