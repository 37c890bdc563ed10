"""Output arrives while its cell runs, in every streamed form."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import Any

import kernelbroker
import pytest
from kernelbroker import events
from websockets.asyncio.client import connect

from tests.e2e.support import (
    DEADLINE_S,
    LOOP_UNTIL_INTERRUPTED,
    BrokerProcess,
    Measured,
    call,
    opened,
    whole_system,
)
from tests.support.results import cause_of

pytestmark = whole_system

THREE_LINES = """
import time
for number in range(3):
    print(time.monotonic())
    time.sleep(0.3)
"""
STREAMED = ["text/plain", "text/event-stream", "application/x-ndjson"]


INTERRUPTED_DISPLAYS = """
import random, signal
class Late(Exception):
    pass
def raise_it(*_):
    global armed
    if armed:
        armed = False
        raise Late
signal.signal(signal.SIGALRM, raise_it)
for number in range(1500):
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00002, 0.0008))
        display(number)
    except Late:
        pass
    armed = False
signal.setitimer(signal.ITIMER_REAL, 0)
"""


async def test_exceptions_in_the_middle_of_output(session: kernelbroker.Session) -> None:
    """Signal handlers that raise while output is sent, at any instruction, tear no message."""
    result = await session.run(INTERRUPTED_DISPLAYS)
    assert (result.success, result.kernel_restarted) == (True, False), result.error
    assert (await session.run("print('after')")).stdout == "after\n"


@pytest.mark.parametrize("accept", STREAMED)
async def test_rest_streams_while_the_cell_runs(
    broker: BrokerProcess, session: kernelbroker.Session, accept: str
) -> None:
    """Each streamed form of REST delivers a line while the cell still runs."""
    path = f"/api/v1/sessions/{session.session_id}"
    body = {"code": LOOP_UNTIL_INTERRUPTED, "timeout": 50}
    async with opened(broker, "POST", f"{path}/exec", body, accept) as response:
        assert response.headers["Content-Type"].startswith(accept)
        await response.until_seen(b"the cell runs")
        status, info = await call(broker, "GET", path)
        assert (status, info["state"]) == (200, "busy")
        assert (await call(broker, "POST", f"{path}/interrupt"))[0] == 202
        assert b'"cause":"interrupted"' in await response.rest()


async def test_rest_json_is_one_body(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """The JSON form is one body at the end, with all output and the result."""
    path = f"/api/v1/sessions/{session.session_id}/exec"
    code = "import sys; print('out'); print('err', file=sys.stderr); 40 + 2"
    status, body = await call(broker, "POST", path, {"code": code}, accept="application/json")
    assert status == 200
    assert (body["stdout"], body["stderr"]) == ("out\n", "err\n")
    assert [display["data"]["text/plain"] for display in body["displays"]] == ["42"]
    assert body["result"]["success"] is True
    assert body["execution_id"] == body["result"]["execution_id"]


async def test_websocket_streams_while_the_cell_runs(broker: BrokerProcess) -> None:
    """The WebSocket delivers a line while the cell runs, and accepts an interrupt meanwhile."""
    headers = {"Authorization": f"Bearer {broker.token}"}
    address = f"ws{broker.url.removeprefix('http')}/api/v1/ws"
    async with asyncio.timeout(DEADLINE_S), connect(address, additional_headers=headers) as socket:

        async def say(**operation: object) -> None:
            await socket.send(json.dumps(operation))

        async def hear() -> dict[str, Any]:
            message: dict[str, Any] = json.loads(await socket.recv())
            return message

        await say(op="open")
        assert (await hear())["type"] == "opened"
        await say(op="execute", code=LOOP_UNTIL_INTERRUPTED, execution_id="mine", timeout=50)
        heard = [await hear(), await hear()]
        assert [event["type"] for event in heard] == ["started", "stdout"]
        assert heard[1]["content"] == "the cell runs\n"
        await say(op="interrupt", op_id="stop it")
        while heard[-1]["type"] != "result":
            heard.append(await hear())
        assert {"type": "done", "op": "interrupt", "op_id": "stop it"} in heard
        events_ = [message for message in heard if message["type"] != "done"]
        assert [event["seq"] for event in events_] == list(range(1, len(events_) + 1))
        assert {event["execution_id"] for event in events_} == {"mine"}
        assert heard[-1]["error_detail"]["cause"] == "interrupted"
        await say(op="close")
        rest = [json.loads(message) async for message in socket]
        assert {"type": "done", "op": "close", "op_id": None} in rest
        assert rest[-1]["type"] == "closed"


async def test_sdk_stream_yields_while_the_cell_runs(session: kernelbroker.Session) -> None:
    """`stream` yields a line while the cell runs; the last event is the result."""
    seen: list[events.Event] = []
    async for event in session.stream(LOOP_UNTIL_INTERRUPTED, timeout=50):
        seen.append(event)
        if isinstance(event, events.Stdout) and event.content == "the cell runs\n":
            await session.interrupt()
    assert isinstance(seen[0], events.Started)
    assert isinstance(seen[-1], events.Result)
    assert cause_of(seen[-1]) == "interrupted"
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))


async def test_sdk_callbacks_are_called_while_the_cell_runs(session: kernelbroker.Session) -> None:
    """The callbacks of `run` are called while the cell runs."""

    async def stop(text: str) -> None:
        await session.interrupt()

    result = await session.run(LOOP_UNTIL_INTERRUPTED, timeout=50, on_stdout=stop)
    assert result.stdout == "the cell runs\n"
    assert cause_of(result) == "interrupted"


def test_sync_stream_yields_while_the_cell_runs(broker: BrokerProcess, shared_id: str) -> None:
    """The synchronous client yields a line while the cell runs."""
    last: events.Event | None = None
    with (
        kernelbroker.sync.connect(broker.url, broker.token) as client,
        client.session(shared_id, keep=True) as session,
    ):
        for last in session.stream(LOOP_UNTIL_INTERRUPTED, timeout=50):
            if isinstance(last, events.Stdout):
                session.interrupt()
    assert isinstance(last, events.Result)
    assert cause_of(last) == "interrupted"


async def test_prints_arrive_one_by_one(session: kernelbroker.Session, measured: Measured) -> None:
    """Prints with pauses between them arrive one by one, each as soon as it is written."""
    await session.run("import time")
    late = []
    async for event in session.stream(THREE_LINES):
        if isinstance(event, events.Stdout):
            late.append(time.monotonic() - float(event.content))  # the host's clock, in jails too
    measured("lines written 300 ms apart arrive after", *late)
    assert len(late) == 3
    assert statistics.median(late) < 0.3  # before the next one is written
    assert max(late) < 2


async def test_output_of_a_thread_arrives_with_a_later_cell(session: kernelbroker.Session) -> None:
    """The output of a thread after its cell's end arrives with the cell that runs then."""
    await session.run(
        "import threading\n"
        "go = threading.Event()\n"
        "thread = threading.Thread(target=lambda: (go.wait(30), print('from the thread')))\n"
        "thread.start()"
    )
    result = await session.run("go.set(); thread.join()")
    assert result.stdout == "from the thread\n"


async def test_subprocess_output_arrives_complete(session: kernelbroker.Session) -> None:
    """The output of programs arrives completely within the cell that ran them."""
    result = await session.run(
        "import subprocess, sys\n"
        "_ = subprocess.run(['sh', '-c', 'seq 1 20000; echo done >&2'], check=True)\n"
        "!echo shell"
    )
    assert result.success, result.error
    numbers = "".join(f"{number}\n" for number in range(1, 20001))
    assert result.stdout.startswith(numbers)
    assert result.stdout.rstrip().endswith("shell")
    assert result.stderr == "done\n"
