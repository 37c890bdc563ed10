"""The time limit for code that looks at a user's objects."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from kernelbroker_kernel.time_limit import TimeIsUp, time_limit


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """No timer at first; the test run's own timer and handler are restored."""
    handler = signal.getsignal(signal.SIGALRM)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)


def endless() -> None:
    while True:
        pass


def stubborn() -> None:
    for _ in range(5):
        try:
            endless()
        except BaseException:
            continue
    endless()


@pytest.mark.parametrize("code", [endless, stubborn, lambda: time.sleep(60)])
def test_a_block_ends_when_its_time_is_up(code: Any) -> None:
    """Code that loops, sleeps or catches every exception is ended."""
    begin = time.monotonic()
    with pytest.raises(TimeIsUp), time_limit(0.01):
        code()
    assert time.monotonic() - begin < 30
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)


def test_a_block_in_time_is_not_disturbed() -> None:
    """No signal comes after a block that has ended in time."""
    before = signal.getsignal(signal.SIGALRM)
    with time_limit(60):
        assert signal.getitimer(signal.ITIMER_REAL)[0] > 50
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    assert signal.getsignal(signal.SIGALRM) is before


def test_the_users_timer_continues() -> None:
    """A user's timer and handler are restored, less the time of the block."""
    signal.signal(signal.SIGALRM, handler := lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 100, 7)
    with time_limit(60):
        pass
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    assert 50 < left < 100 and interval == 7
    assert signal.getsignal(signal.SIGALRM) is handler


def test_the_users_timer_fires_after_the_block() -> None:
    """A user's timer that expires during the block calls the user's handler after it."""
    fired: list[bool] = []
    inside = True
    signal.signal(signal.SIGALRM, lambda *_: fired.append(inside))
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    with pytest.raises(TimeIsUp), time_limit(0.05):
        endless()
    inside = False
    signal.pause() if not fired else None
    assert len(fired) == 1


def test_other_threads_have_no_limit() -> None:
    """A thread, which gets no signals, runs the block without a limit."""
    ran: list[bool] = []

    def run() -> None:
        with time_limit(0.001):
            ran.append(True)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert ran == [True]
