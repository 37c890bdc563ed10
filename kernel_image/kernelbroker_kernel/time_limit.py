"""A time limit for code that looks at a user's objects, whose properties may loop or sleep."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

_REPEAT_S = 0.05


class TimeIsUp(KeyboardInterrupt):
    """The time limit has passed. An interrupt, so that all code that lets interrupts pass ends by it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeIsUp in the block after so many seconds, repeatedly, since the block may catch it.

    A timer and a handler of the user's are restored. If their timer expired meanwhile, it fires after
    the block. There is no limit in other threads than the main one, which alone handles signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    is_running = True

    def expire(_number: int, _frame: object) -> None:
        if is_running:
            raise TimeIsUp

    left, interval = signal.setitimer(signal.ITIMER_REAL, 0)
    begin = monotonic()
    handler = signal.signal(signal.SIGALRM, expire)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_S)
        try:
            yield
        finally:
            is_running = False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        if handler is not None:  # None: not set from Python
            signal.signal(signal.SIGALRM, handler)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left + begin - monotonic(), 1e-6), interval)
