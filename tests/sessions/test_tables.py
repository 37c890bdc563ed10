"""Errands of a session: in its order, out of its history, and whatever their kernel answers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    RequestError,
    SessionGone,
    Unavailable,
)
from kernelbroker_kernel import contract
from kernelbroker_server.sessions import tables
from kernelbroker_server.sessions.session import Session

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import Breakpoint, deaf, result_of, running, submit, world


def answering(payload: Any) -> Any:
    async def script(cell: Cell) -> None:
        assert cell.content["silent"]
        cell.display({contract.ERRAND_MIME: payload})

    return script


async def refusal(session: Session, name: str = "df") -> RequestError:
    with pytest.raises(RequestError) as caught:
        async with asyncio.timeout(DEADLINE_S), tables.export(session, name, "arrow"):
            pass
    return caught.value


@pytest.mark.parametrize(
    ("payload", "error"),
    [
        ({"refused": {"code": "not_found", "message": "no"}}, NotFound),
        ({"refused": {"code": "conflict", "message": "no"}}, Conflict),
        ({"refused": {"code": "unauthorized", "message": "a code of no table"}}, Conflict),
        ({"refused": {"code": "not_found", "message": 3}}, Unavailable),
        ({"ready": "yes"}, Unavailable),
        ({"ready": False}, Unavailable),
        ({"ready": True}, Unavailable),  # and nothing can be fetched
        ([1], Unavailable),
        (None, Unavailable),
    ],
)
async def test_what_a_kernel_answers(
    backend: FakeBackend, payload: Any, error: type[RequestError]
) -> None:
    """An answer of any form is an error with words, and the session goes on."""
    backend.scripts[contract.ERRAND_CODE] = answering(payload)
    async with world(backend) as w:
        session = await w.open()
        assert type(await refusal(session)) is error
        assert (await result_of(submit(session))).success
        assert len(session.executions) == 1


async def test_no_answer(backend: FakeBackend) -> None:
    """A kernel that ends the errand without an answer, or dies, is told; the next cell learns of a loss."""
    async with world(backend) as w:
        session = await w.open()
        assert isinstance(await refusal(session), Unavailable)
        backend.scripts[contract.ERRAND_CODE] = backend.scripts["die"]
        assert isinstance(await refusal(session), Unavailable)
        assert (await result_of(submit(session))).kernel_restarted
        assert not (await result_of(submit(session))).kernel_restarted


async def test_names(backend: FakeBackend) -> None:
    """What is no identifier is refused before anything runs."""
    async with world(backend) as w:
        session = await w.open()
        for name in ("", "a b", "a.b", "1", "a[0]", "a\n", "x" * 257):
            assert isinstance(await refusal(session, name), BadRequest), name
        assert w.gate.waiting == 0


async def test_a_busy_session(backend: FakeBackend) -> None:
    """An errand waits for the cells before it, but not for ever, and then leaves the line."""
    backend.scripts["deaf"] = deaf
    async with world(backend, acquire_timeout=0.2) as w:
        session = await w.open()
        execution = submit(session, "deaf", timeout=60)
        await running(execution)
        error = await refusal(session)
        assert isinstance(error, Unavailable) and "busy" in error.message
        assert (session.queued, w.gate.waiting) == (0, 0)


async def test_whoever_leaves_the_line(backend: FakeBackend) -> None:
    """An errand whose client has gone never runs, and one that runs is interrupted."""
    point, ran = Breakpoint(), []

    async def errand(cell: Cell) -> None:
        ran.append(cell)
        await cell.until_interrupted()

    backend.scripts |= {"wait": point, contract.ERRAND_CODE: errand}
    async with world(backend) as w:
        session = await w.open()
        execution = submit(session, "wait")
        await point.reached()
        waiting = asyncio.create_task(refusal(session))
        await until(lambda: session.queued)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert session.queued == 0
        point.go_on.set()
        await result_of(execution)
        assert ran == []
        started = asyncio.create_task(refusal(session))
        await until(lambda: ran)
        started.cancel()
        await asyncio.wait([started])
        assert (await result_of(submit(session))).success


async def test_a_session_that_closes(backend: FakeBackend) -> None:
    """Whoever waits for an errand of a session that closes is told so."""
    backend.scripts[contract.ERRAND_CODE] = deaf
    async with world(backend) as w:
        session = await w.open()
        asked = asyncio.create_task(refusal(session))
        await until(lambda: session.state.value == "busy")
        await session.close("the test says so")
        assert isinstance(await asked, SessionGone)
