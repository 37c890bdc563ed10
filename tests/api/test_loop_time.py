"""No request holds up the others: with the largest input that is allowed, no step of the loop is long."""

from __future__ import annotations

import asyncio
import re
import time
from typing import Any

import pytest
from kernelbroker.protocol.codec import encode
from kernelbroker_server.api.base import MAX_BODY_BYTES
from kernelbroker_server.api.routes import openapi_document

from tests.support.gateway import Cell
from tests.support.http import Api
from tests.support.loop_time import measured_steps

LONGEST_S = 0.1
"""For that time `/health/live` and every line of output may have to wait."""
MAX_CODE = 100_000
CODE = ("x = '\U0001f600' # \\\" \n" * 8000)[:MAX_CODE]
ROOM = MAX_BODY_BYTES - 1000
BODIES: dict[str, bytes] = {
    "a long text": encode("\n" * (ROOM // 2)),
    "deep lists": b"[" * ROOM,
    "deep objects": b'{"a":' * (ROOM // 5),
    "closed deep lists": b"[" * (ROOM // 2) + b"]" * (ROOM // 2),
    "many fields": encode({f"field {number}": number for number in range(ROOM // 25)}),
    "many numbers": encode(list(range(ROOM // 8))),
    "nothing that can be decoded": b"\xff" * ROOM,
}
"""Bodies that no route expects."""
FILLED = {
    "session_id": "mine",
    "execution_id": "e" * 32,
    "context_id": "mine",
    "name": "default",
    "path": "/".join(["d" * 100] * 30),
    "operation": "read",
    "checkpoint": "c" * 64,
    "workspace": "w" * 64,
    "confirmation": "f" * 32,
    "action": "open",
    "port": "1",
}
CALLS = sorted(
    {
        (method.upper(), path)
        for path, methods in openapi_document("1")["paths"].items()
        for method in methods
        if method in ("post", "put", "patch", "delete")
    }
)
MANY = {f"NAME_{number}": "v" * 20 for number in range(ROOM // 50)}
SECRETS = {f"S{number}": f"{number:05} line\n" * 20 for number in range(100)}
SESSION = "/api/v1/sessions/mine"
LARGEST: dict[str, tuple[str, str, Any]] = {
    "code": ("POST", f"{SESSION}/exec", {"code": CODE}),
    "code of one line": ("POST", f"{SESSION}/exec", {"code": "x" * MAX_CODE}),
    "code of brackets": ("POST", f"{SESSION}/exec", {"code": "(" * MAX_CODE}),
    "variables of a cell": ("POST", f"{SESSION}/exec", {"code": "1", "env": MANY}),
    "secrets of a cell": ("POST", f"{SESSION}/exec", {"code": "flood", "secrets": SECRETS}),
    "variables of a session": ("POST", "/api/v1/sessions", {"env": MANY}),
    "secrets of a session": ("POST", "/api/v1/sessions", {"secrets": SECRETS}),
    "metadata": ("POST", "/api/v1/sessions", {"metadata": {"a": list(range(3000))}}),
    "code to assess": ("POST", "/api/v1/assess", {"code": CODE}),
}
"""The largest of what routes expect."""


async def longest(api: Api, method: str, path: str, body: bytes) -> tuple[float, str, int]:
    """The longest step while a request is answered, what it ran, and the status."""
    with measured_steps() as steps:
        answer = await api.ask(method, path, body)
        assert (await api.ask("GET", "/health/live")).status == 200
    return steps.longest_s, steps.of, answer.status


@pytest.mark.parametrize("kind", BODIES)
async def test_no_body_holds_up_the_loop(api: Api, kind: str) -> None:
    """Whatever is sent to whichever route, other requests are answered within 100 ms."""
    await api.ask("POST", "/api/v1/sessions", {"session_id": "mine"})
    slow = {}
    for method, pattern in CALLS:
        path = re.sub(r"{(\w+)}", lambda found: FILLED[found[1]], pattern)
        seconds, what, status = await longest(api, method, path, BODIES[kind])
        assert status < 500 or status == 503, (method, path, status)
        if seconds > LONGEST_S:
            slow[method, pattern] = (seconds, what)
        if (method, pattern) == ("DELETE", "/api/v1/sessions/{session_id}"):
            await api.ask("POST", "/api/v1/sessions", {"session_id": "mine"})
    assert slow == {}


@pytest.mark.parametrize("kind", LARGEST)
async def test_no_large_input_holds_up_the_loop(api: Api, kind: str) -> None:
    """The largest input of a route is no different, also if its cell prints a lot."""

    async def flood(cell: Cell) -> None:
        for _ in range(64):
            cell.stdout("00001 line\n" * 1500)

    api.world.backend.scripts["flood"] = flood
    await api.ask("POST", "/api/v1/sessions", {"session_id": "mine"})
    method, path, body = LARGEST[kind]
    seconds, what, status = await longest(api, method, path, encode(body))
    assert status < 300
    assert seconds < LONGEST_S, what


async def test_a_long_step_is_found(api: Api) -> None:
    """The measurement sees a step that computes for 150 ms."""
    with measured_steps() as steps:
        until = time.thread_time() + 0.15

        def compute() -> None:
            while time.thread_time() < until:
                pass

        asyncio.get_running_loop().call_soon(compute)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert steps.longest_s > LONGEST_S and "compute" in steps.of
