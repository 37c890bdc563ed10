"""Clients that disconnect before they are answered."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from kernelbroker_server.api import packages
from kernelbroker_server.api.disconnect import ClientDisconnected, Disconnectable
from kernelbroker_server.telemetry.events import RequestEnded, TelemetryEvent

from tests.support.backend import FakeBackend
from tests.support.http import serving
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import Breakpoint, world


def handler() -> Disconnectable:
    """A handler without a request: `until_disconnected` needs none."""
    made = Disconnectable.__new__(Disconnectable)
    made.request = None  # type: ignore[assignment]
    return made


async def test_a_client_that_is_gone_before_the_block() -> None:
    """The block is not entered, and nothing is left to cancel the task later."""
    made = handler()
    made.gone = True
    entered = False
    with pytest.raises(ClientDisconnected):
        async with made.until_disconnected():
            entered = True
    assert not entered
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0)


async def test_other_cancellations_pass_through() -> None:
    """A cancellation that does not come from the client passes through."""
    made = handler()
    entered = asyncio.Event()

    async def work() -> None:
        async with made.until_disconnected():
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
async def statuses() -> AsyncIterator[list[int]]:
    yield []


async def test_a_client_that_leaves_during_an_installation(
    backend: FakeBackend, statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A JSON answer is given up: the handler waits neither before nor after the installation begins."""
    begun, go_on = asyncio.Event(), asyncio.Event()
    installed: list[object] = []
    original = packages.packages.install

    async def slow_install(*args: object, **kwargs: object) -> object:
        begun.set()
        await go_on.wait()
        installed.append(execution := await original(*args, **kwargs))  # type: ignore[arg-type]
        return execution

    def observe(event: TelemetryEvent) -> None:
        if isinstance(event, RequestEnded) and event.route.endswith("/packages"):
            statuses.append(event.status)

    monkeypatch.setattr(packages.packages, "install", slow_install)
    async with world(backend) as w, serving(w, observer=observe) as api:
        await w.open("one")
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        body = b'{"packages": ["numpy"]}'
        head = (
            "POST /api/v1/sessions/one/packages HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n"
            f"Authorization: Bearer the-token\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        async with asyncio.timeout(DEADLINE_S):
            await begun.wait()
        writer.transport.abort()
        await until(lambda: statuses)
    assert statuses == [499]
    assert installed == []


async def test_a_client_that_leaves_while_its_answer_is_collected(
    backend: FakeBackend, statuses: list[int]
) -> None:
    """A cell that is answered as JSON runs on; its request ends when the client does."""

    def observe(event: TelemetryEvent) -> None:
        if isinstance(event, RequestEnded) and event.route.endswith("/exec"):
            statuses.append(event.status)

    backend.scripts["wait"] = point = Breakpoint()
    async with world(backend) as w, serving(w, observer=observe) as api:
        session = await w.open("one")
        _, writer = await asyncio.open_connection("127.0.0.1", api.port)
        body = b'{"code": "wait"}'
        head = (
            "POST /api/v1/sessions/one/exec HTTP/1.1\r\nHost: x\r\nAccept: application/json\r\n"
            f"Authorization: Bearer the-token\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        writer.write(head.encode() + body)
        await point.reached()
        writer.transport.abort()
        await until(lambda: statuses)
        assert [each.state for each in session.executions.values()] == ["running"]
        point.go_on.set()
    assert statuses == [499]
