"""Runs the steps of a shutdown. Each step runs, even if others fail."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a shutdown.

    Attributes:
        name: for the log.
        run: does it.
        timeout: seconds after which it is cancelled and the next step begins.
    """

    name: str
    run: Callable[[], Awaitable[object]]
    timeout: float


async def run_all(steps: Sequence[Step]) -> None:
    """Run the steps in order. An error or a timeout is logged, and the next step runs.

    A caller that is cancelled cancels the current step only; the CancelledError is raised at the end.
    """
    cancelled: asyncio.CancelledError | None = None
    for step in steps:
        try:
            async with asyncio.timeout(step.timeout):
                await step.run()
        except TimeoutError:
            logger.warning("shutdown: %s did not end within %g s", step.name, step.timeout)
        except asyncio.CancelledError as exc:
            cancelled = exc
        except Exception:
            logger.exception("shutdown: %s failed", step.name)
    if cancelled is not None:
        raise cancelled
