"""Log lines as text and as JSON, with the ids of their task."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from pathlib import Path

import pytest
from kernelbroker_server.telemetry import logs
from kernelbroker_server.telemetry.execution_log import log_executions
from kernelbroker_server.telemetry.logs import JsonFormatter, TextFormatter, bind, bound, bound_ids

from tests.support.backend import FakeBackend
from tests.support.world import result_of, submit, world


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


async def test_one_line_for_each_execution(
    backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """An execution that ends is logged with its ids, times and sizes, and without code or output."""
    caplog.set_level(logging.INFO)
    async with world(backend, observer=log_executions) as made:
        session = await made.open("s")
        with bound(request_id="r"):
            log = submit(session, "secret_name = 1")
        await result_of(log)
        workers = set(backend.live)
    (line,) = [each for each in caplog.records if each.message == "Code execution completed"]
    told = json.loads(JsonFormatter().format(line))
    assert told["request_id"] == "r"
    assert told["worker_id"] in workers
    assert (told["session_id"], told["execution_id"]) == ("s", log.id)
    assert (told["code_length"], told["outcome"]) == (15, "success")
    assert told["output_size"] > 0
    assert "execution_time" in told
    text = TextFormatter().format(line)
    assert "code_length=15" in text
    assert "secret_name" not in text + json.dumps(told)


def test_a_log_file_is_rotated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines go to the file as well, which is renamed when it is full; five files are kept."""
    assert (logs._FILE_BYTES, logs._FILES) == (100_000_000, 5)
    monkeypatch.setattr(logs, "_FILE_BYTES", 1000)
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers = []
    try:
        logs.configure("INFO", "json", tmp_path / "broker.log")
        for number in range(100):
            logging.getLogger("x").info("line %d", number)
    finally:
        for handler in root.handlers:
            handler.close()
        root.handlers, root.level = handlers, level
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["broker.log", *(f"broker.log.{n}" for n in range(1, 5))]
    last = (tmp_path / "broker.log").read_text().splitlines()[-1]
    assert json.loads(last)["message"] == "line 99"
    assert all(path.stat().st_size <= 1000 for path in tmp_path.iterdir())
