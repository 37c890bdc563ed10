"""Threads that output needs: the one that sends it cannot seem to end, and no further one is started.

In Python 3.11 and 3.12 `Thread.is_alive` takes the lock of the thread. If a signal handler raises then, as
that of an interrupt does, the living thread counts as ended. Each print asks whether the thread for output
lives; other threads would then use its socket beside it, and tear messages.
"""

from __future__ import annotations

import threading

import zmq


def keep_alive(thread: threading.Thread) -> None:
    """Let `is_alive` only look. Later versions of Python need nothing."""
    if hasattr(thread, "_tstate_lock") and hasattr(thread, "_is_stopped"):
        thread.is_alive = lambda: not thread._is_stopped  # type: ignore[method-assign]


def send_without_threads() -> None:
    """Let pyzmq copy each message that it sends.

    It starts a thread of its own for the first large message that it does not copy. A sandbox that has
    reached its limit of processes gets no thread, and would lose the message.
    """
    zmq.COPY_THRESHOLD = 2**31 - 1  # as large as its type allows
