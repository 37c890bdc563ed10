"""The processor time of the longest step of an event loop, however busy the machine is."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Steps:
    """The longest step so far, and what it ran."""

    longest_s: float = 0.0
    of: str = ""


@contextmanager
def measured_steps() -> Iterator[Steps]:
    """Measure each step of all loops of this thread in the block.

    No garbage is collected meanwhile: in the heap of all tests that takes longer than any step.
    """
    steps, run = Steps(), asyncio.events.Handle._run

    def measure(handle: Any) -> None:
        began = time.thread_time()
        run(handle)
        if (took := time.thread_time() - began) > steps.longest_s:
            steps.longest_s, steps.of = took, repr(handle)[:300]

    gc.disable()
    asyncio.events.Handle._run = measure  # type: ignore[method-assign]
    try:
        yield steps
    finally:
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
        gc.enable()
