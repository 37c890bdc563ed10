"""Measures how late the event loop is: everything in the broker waits for the longest step of its work."""

from __future__ import annotations

import asyncio
import logging

from .events import LoopDelayed, Observer

logger = logging.getLogger(__name__)

_INTERVAL_S = 0.1
_WARN_S = 1.0


async def watch_loop(observer: Observer) -> None:
    """Emit `LoopDelayed` ten times a second, and warn if the loop stood still."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + _INTERVAL_S
        await asyncio.sleep(_INTERVAL_S)
        late = loop.time() - due
        observer(LoopDelayed(late))
        if late > _WARN_S:
            logger.warning("the event loop stood still for %.1f s", late)
