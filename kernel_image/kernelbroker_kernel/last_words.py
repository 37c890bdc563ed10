"""The output that is on its way when a cell ends the kernel's process by `os._exit`.

ZeroMQ sends in a thread of its own, which ends with the process: what a cell has printed just before would
be lost. So the kernel's `os._exit` first closes the socket for output, and waits until everything is sent.
A process that a cell forks ends at once, and so does one that is ended by a signal.
"""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import zmq

_LIMIT_MS = 1000
"""The time that it may take, for example while the gateway reads nothing."""
_MONITOR = "inproc://last-words"


def install(thread: Any, streams: Sequence[Any]) -> None:
    """Let `os._exit` send the output.

    Args:
        thread: ipykernel's thread for output, with the socket.
        streams: standard output and error.
    """
    exit_now, pid = os._exit, os.getpid()

    @functools.wraps(exit_now)
    def _exit(status: int) -> NoReturn:
        code = operator.index(status)  # the original refuses other types as well, and goes on
        if os.getpid() == pid:
            with contextlib.suppress(BaseException):
                _send_all(thread, streams)
        exit_now(code)

    os._exit = _exit


def _send_all(thread: Any, streams: Sequence[Any]) -> None:
    done = threading.Event()

    def send() -> None:
        for stream in streams:
            stream.flush()  # in this thread it schedules what is to be sent
        thread.schedule(lambda: _close(thread.socket, done))

    thread.schedule(send)
    done.wait(_LIMIT_MS / 1000)


def _close(socket: Any, done: threading.Event) -> None:
    """Run in the sending thread. A socket's monitor stops when its last message was sent."""
    try:
        socket.monitor(_MONITOR, zmq.EVENT_MONITOR_STOPPED)
        monitor = socket.context.socket(zmq.PAIR)
        monitor.connect(_MONITOR)
        socket.close(_LIMIT_MS)
        monitor.poll(_LIMIT_MS)
    finally:
        done.set()
