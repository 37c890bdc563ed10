"""The steps of a shutdown."""

from __future__ import annotations

import asyncio
import logging

import pytest
from kernelbroker_server.shutdown import Step, run_all


async def test_every_step_runs(caplog: pytest.LogCaptureFixture) -> None:
    """Errors and timeouts are logged by the step's name, and the next step runs."""
    ran: list[str] = []

    async def good() -> None:
        ran.append("good")

    async def bad() -> None:
        ran.append("bad")
        raise RuntimeError("unexpected")

    async def slow() -> None:
        ran.append("slow")
        await asyncio.Event().wait()

    steps = [Step("a", bad, 1), Step("b", slow, 0.01), Step("c", good, 1)]
    await run_all(steps)
    assert ran == ["bad", "slow", "good"]
    levels = [(record.levelno, record.getMessage()) for record in caplog.records]
    assert levels == [
        (logging.ERROR, "shutdown: a failed"),
        (logging.WARNING, "shutdown: b did not end within 0.01 s"),
    ]


async def test_cancelled() -> None:
    """A caller that is cancelled gets its CancelledError, after the remaining steps."""
    begun, ran = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def last() -> None:
        ran.set()

    task = asyncio.create_task(run_all([Step("a", slow, 10), Step("b", last, 10)]))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ran.is_set()
