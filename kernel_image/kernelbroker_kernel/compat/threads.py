"""A thread that no exception of a signal handler can seem to end.

In Python 3.11 and 3.12 `Thread.is_alive` takes the lock of the thread. If a signal handler raises then, as
that of an interrupt does, the living thread counts as ended. Each print asks whether the thread for output
lives; other threads would then use its socket beside it, and tear messages.
"""

from __future__ import annotations

import threading


def keep_alive(thread: threading.Thread) -> None:
    """Let `is_alive` only look. Later versions of Python need nothing."""
    if hasattr(thread, "_tstate_lock") and hasattr(thread, "_is_stopped"):
        thread.is_alive = lambda: not thread._is_stopped  # type: ignore[method-assign]
