"""Work that an interrupt must not cut off."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore interrupts in the block, which ends programs or removes what they left.

    The broker repeats an interrupt until its cell ends, and the second one would come here. Do not start
    programs in the block: they would ignore interrupts, too.
    """
    if threading.current_thread() is not threading.main_thread():  # no other one gets interrupts
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
