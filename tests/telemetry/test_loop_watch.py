"""How late the event loop is."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from kernelbroker_server.telemetry.events import LoopDelayed, TelemetryEvent
from kernelbroker_server.telemetry.loop_watch import watch_loop
from kernelbroker_server.telemetry.metrics import Metrics

from tests.support.waiting import until


async def test_a_loop_that_stands_still_is_told(caplog: pytest.LogCaptureFixture) -> None:
    """The delay is measured, a metric, and a warning."""
    seen: list[TelemetryEvent] = []
    metrics = Metrics(dict)

    def observe(event: TelemetryEvent) -> None:
        seen.append(event)
        metrics.on_event(event)

    watching = asyncio.create_task(watch_loop(observe))
    try:
        await until(lambda: seen)
        with caplog.at_level(logging.WARNING):
            time.sleep(1.3)  # noqa: ASYNC251
            before = len(seen)
            await until(lambda: len(seen) > before)
    finally:
        watching.cancel()
    assert any(isinstance(each, LoopDelayed) and 1.0 < each.seconds < 10 for each in seen)
    assert "the event loop stood still for" in caplog.text
    text = metrics.text().decode()
    assert 'kernelbroker_event_loop_delay_seconds_bucket{le="1.0"}' in text
