"""Log lines as text and as JSON, with the ids of their task."""

from __future__ import annotations

import asyncio
import json
import logging
import sys

from kernelbroker_server.telemetry.logs import JsonFormatter, TextFormatter, bind, bound, bound_ids


def record(message: str, *args: object, failed: bool = False) -> logging.LogRecord:
    exc_info = None
    if failed:
        try:
            raise ValueError("why")
        except ValueError:
            exc_info = sys.exc_info()
    return logging.LogRecord("a.b", logging.WARNING, __file__, 1, message, args, exc_info)


def test_json_lines() -> None:
    """A line is one JSON object, for any message."""
    with bound(request_id="r", session_id="s"):
        line = JsonFormatter().format(record("odd %s", 'line\n"quoted"\ud800', failed=True))
    assert "\n" not in line
    told = json.loads(line)
    assert (told["level"], told["logger"]) == ("warning", "a.b")
    assert told["message"] == 'odd line\n"quoted"\ud800'
    assert (told["request_id"], told["session_id"]) == ("r", "s")
    assert told["exception"].endswith("ValueError: why")
    assert "request_id" not in json.loads(JsonFormatter().format(record("x")))


def test_text_lines_end_with_the_ids() -> None:
    """The ids are at the end of the line."""
    with bound(request_id="r"):
        assert TextFormatter().format(record("x")).endswith("WARNING a.b: x [request_id=r]")
    assert TextFormatter().format(record("x")).endswith("WARNING a.b: x")


async def test_ids_belong_to_the_task() -> None:
    """Ids that a task binds are seen by tasks that it creates, and by no others."""

    async def child() -> str:
        return bound_ids()["request_id"]

    async def request(name: str) -> str:
        bind(request_id=name)
        await asyncio.sleep(0)
        return await asyncio.create_task(child())

    assert await asyncio.gather(request("a"), request("b")) == ["a", "b"]
    assert bound_ids() == {}
