"""Internal cells of a session: their order, their history, and malformed answers."""

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
from kernelbroker_server.service import tables
from kernelbroker_server.sessions.session import Session

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import Breakpoint, deaf, executions_of, result_of, running, submit, world


def answering(payload: Any) -> Any:
    async def script(cell: Cell) -> None:
        assert cell.content["silent"]
        cell.display({contract.INTERNAL_CELL_MIME: payload})

    return script


async def refusal(session: Session, name: str = "df") -> RequestError:
    with pytest.raises(RequestError) as caught:
        async with (
            asyncio.timeout(DEADLINE_S),
            tables.export(executions_of(session), session, name, "arrow"),
        ):
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
async def test_malformed_answers_are_errors(
    backend: FakeBackend, payload: Any, error: type[RequestError]
) -> None:
    """A malformed answer is an error with a message, and the session continues."""
    backend.scripts[contract.INTERNAL_CELL_CODE] = answering(payload)
    async with world(backend) as w:
        session = await w.open()
        assert type(await refusal(session)) is error
        assert (await result_of(submit(session))).success
        assert len(session.executions) == 1


async def test_a_missing_answer_is_reported(backend: FakeBackend) -> None:
    """A kernel that does not answer or dies is reported; the next cell reports lost state."""
    async with world(backend) as w:
        session = await w.open()
        assert isinstance(await refusal(session), Unavailable)
        backend.scripts[contract.INTERNAL_CELL_CODE] = backend.scripts["die"]
        assert isinstance(await refusal(session), Unavailable)
        assert (await result_of(submit(session))).kernel_restarted
        assert not (await result_of(submit(session))).kernel_restarted


async def test_the_kernel_is_told_whether_changes_are_allowed(backend: FakeBackend) -> None:
    """`lossy` reaches the kernel with the request for the table."""
    asked: list[dict[str, Any]] = []

    async def script(cell: Cell) -> None:
        asked.append(cell.metadata[contract.METADATA_KEY]["export"])
        cell.display(
            {contract.INTERNAL_CELL_MIME: {"refused": {"code": "conflict", "message": ""}}}
        )

    backend.scripts[contract.INTERNAL_CELL_CODE] = script
    async with world(backend) as w:
        session = await w.open()
        for lossy in (False, True):
            with pytest.raises(Conflict):
                async with tables.export(
                    executions_of(session), session, "df", "arrow", lossy=lossy
                ):
                    pass
    assert [options["lossy"] for options in asked] == [False, True]


async def test_invalid_names_are_refused(backend: FakeBackend) -> None:
    """A name that is not an identifier is refused before anything runs."""
    async with world(backend) as w:
        session = await w.open()
        for name in ("", "a b", "a.b", "1", "a[0]", "a\n", "x" * 257):
            assert isinstance(await refusal(session, name), BadRequest), name
        assert w.admission.waiting == 0


async def test_an_internal_cell_waits_a_limited_time(backend: FakeBackend) -> None:
    """An internal cell waits for earlier cells for a limited time, and then leaves the queue."""
    backend.scripts["deaf"] = deaf
    async with world(backend, acquire_timeout=0.2) as w:
        session = await w.open()
        execution = submit(session, "deaf", timeout=60)
        await running(execution)
        error = await refusal(session)
        assert isinstance(error, Unavailable) and "busy" in error.message
        assert (session.queued, w.admission.waiting) == (0, 0)


async def test_a_cancelled_internal_cell_does_not_run(backend: FakeBackend) -> None:
    """A cancelled internal cell does not run, and a running one is interrupted."""
    point, ran = Breakpoint(), []

    async def errand(cell: Cell) -> None:
        ran.append(cell)
        await cell.until_interrupted()

    backend.scripts |= {"wait": point, contract.INTERNAL_CELL_CODE: errand}
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
    """A caller that waits for an internal cell of a closing session gets the reason."""
    backend.scripts[contract.INTERNAL_CELL_CODE] = deaf
    async with world(backend) as w:
        session = await w.open()
        asked = asyncio.create_task(refusal(session))
        await until(lambda: session.state == "busy")
        await session.close("the test says so")
        assert isinstance(await asked, SessionGone)
