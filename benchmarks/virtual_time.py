"""An event loop whose clock jumps to the next timer, so that hours take seconds and each run is the same.

Call `install` before the broker is imported: its modules then see the virtual clock in `time.monotonic` and
`time.time`. Threads would race with the clock, so what is sent to one runs at once in the event loop.
The time that the program itself takes does not count; who wants it to count waits for it with
`asyncio.sleep`.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Callable
from typing import Any

_EPOCH = 1_700_000_000.0
"""What `time.time` gives at the beginning."""


class _Selector(selectors.DefaultSelector):
    """Waits for no timer: if no file is ready, the clock jumps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or not timeout:
            if timeout is None and not ready:
                raise RuntimeError("all tasks wait, and none for a timer: the simulation is stuck")
            return ready
        self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """The event loop; its time begins at 0."""

    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now

    def run_in_executor(  # type: ignore[override]
        self, _executor: object, work: Callable[..., Any], *arguments: Any
    ) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(work(*arguments))
        except BaseException as error:
            done.set_exception(error)
        return done


def install() -> VirtualLoop:
    """Return a new loop, whose clock is that of this process from now on."""
    loop = VirtualLoop()
    time.monotonic = loop.time
    time.time = lambda: _EPOCH + loop.time()
    return loop
