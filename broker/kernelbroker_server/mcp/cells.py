"""Cells behind tools: submit, confirm, follow, answer `input()`, and interrupt if the call is cancelled."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from kernelbroker.collector import Collector
from kernelbroker.protocol.errors import (
    ConfirmationRequired,
    Conflict,
    NotFound,
    PolicyRefused,
    SessionGone,
)
from kernelbroker.protocol.events import Event, Input, Result, Stderr, Stdout
from kernelbroker.results import ExecutionResult
from mcp_types import ElicitRequestFormParams, ElicitResult, InputRequiredResult

from ..kernels.channel import ChannelClosed
from ..sessions.session import Session
from ..sessions.store import ExecutionLog
from . import asking
from .asking import State
from .call import Call

LAST_VALUE = "_"
"""IPython's name for the value of the last expression."""
_REPORT_EVERY_S = 0.25
_REPORT_CHARS = 2_000
"""The end of the output since the last report that a report has."""
_SHOWN_CODE_CHARS = 2_000


async def submit(
    call: Call,
    session: Session,
    code: str,
    confirm: str | None,
    submit_with: Callable[[str | None], Awaitable[ExecutionLog]],
) -> ExecutionLog | InputRequiredResult:
    """Submit a cell, after the person has confirmed it if the policy wants that.

    Args:
        code: shown to the person.
        confirm: the confirmation that came with the call.
        submit_with: submits the cell with a confirmation.

    Raises:
        PolicyRefused: the person does not want it.
        ConfirmationRequired: the client cannot ask; the message says how to confirm.
        as `submit_with`.
    """
    state = asking.state_of(call)
    if state is not None and state.step == "confirm":
        _expect_consent(asking.response_of(call))
        confirm = state.confirmation
    try:
        return await submit_with(confirm)
    except ConfirmationRequired as required:
        asked = asking.question(_confirmation_message(required, code))
        assert required.confirmation is not None
        if not asking.can_ask(call):
            raise ConfirmationRequired(
                f"{required.message.partition('. It was not run')[0]}. It was not run. Ask the person "
                f"whether it may run. If so, call this tool again with the same arguments, "
                f"session_id={session.id!r} and confirm={required.confirmation!r}, within "
                f"{required.expires_in:g} s"
            ) from None
        if call.is_modern:
            confirmation = required.confirmation
            return asking.later(
                asked, State(step="confirm", session=session.id, confirmation=confirmation)
            )
        _expect_consent(await asking.now(call, asked))
        return await submit_with(required.confirmation)


async def follow(
    call: Call, session: Session, log: ExecutionLog, *, for_s: float | None = None
) -> ExecutionResult | InputRequiredResult | None:
    """Wait for the result of a cell, and send its output as progress meanwhile.

    If the call is cancelled, the cell is interrupted.

    Args:
        for_s: seconds to wait at most.

    Returns:
        None if the cell still runs after `for_s`, or waits for input before that.
    """
    try:
        async with asyncio.timeout(for_s), _reporting(call) as report:
            return await _follow(call, session, log, report, must_ask=for_s is None)
    except TimeoutError:
        return None
    except asyncio.CancelledError:
        interrupt(session, log.id)
        raise


async def _follow(
    call: Call,
    session: Session,
    log: ExecutionLog,
    report: Callable[[Event], None],
    *,
    must_ask: bool,
) -> ExecutionResult | InputRequiredResult | None:
    collector = Collector()
    state = asking.state_of(call)
    answered = state.seq if state is not None and state.step == "input" else 0
    if answered:
        await answer(session, log, asking.response_of(call))
    async for stored in log.follow():
        event = stored.event
        collector.add(event)
        if isinstance(event, Input) and event.seq > answered:
            if not must_ask:
                return None
            asked = input_question(event)
            if call.is_modern:
                return asking.later(
                    asked,
                    State(step="input", session=session.id, execution=log.id, seq=event.seq),
                )
            await answer(session, log, await asking.now(call, asked))
        elif event.seq > answered:
            report(event)
    return collector.result()


def result_of(events: list[Event]) -> ExecutionResult:
    """Return the result of an execution from all its events."""
    assert isinstance(events[-1], Result)
    collector = Collector()
    for event in events:
        collector.add(event)
    return collector.result()


def interrupt(session: Session, execution_id: str) -> None:
    """Interrupt a cell, or take it out of the queue. Does nothing if it has ended."""
    with contextlib.suppress(SessionGone):
        session.interrupt(execution_id)


async def answer(session: Session, log: ExecutionLog, response: ElicitResult | None) -> None:
    """Answer `input()`; interrupt the cell if the person did not."""
    if response is None or response.action != "accept":
        interrupt(session, log.id)
        return
    value = (response.content or {}).get("value", "")
    with contextlib.suppress(ChannelClosed, NotFound):  # answered before, or ended meanwhile
        await session.answer(log.id, str(value))


def _expect_consent(response: ElicitResult | None) -> None:
    """Raises PolicyRefused, and Conflict if there is no response."""
    if response is None:
        raise Conflict("the person's response is missing; call again without requestState")
    if response.action != "accept":
        raise PolicyRefused("the person does not want this code to run; it was not run")


def input_question(event: Input) -> ElicitRequestFormParams:
    """Return the question for an `input()`."""
    field: dict[str, Any] = {"type": "string", "title": event.prompt[:200] or "Input"}
    schema = {"type": "object", "properties": {"value": field}, "required": ["value"]}
    return asking.question(event.prompt or "The code asks for input.", schema)


def _confirmation_message(required: ConfirmationRequired, code: str) -> str:
    reasons = "\n".join(f"- line {each.line}: {each.reason}" for each in required.findings[:10])
    shown = code if len(code) <= _SHOWN_CODE_CHARS else code[:_SHOWN_CODE_CHARS] + "\n…"
    return f"Run this code? It was assessed as risky:\n{reasons}\n\n{shown}"


@contextlib.asynccontextmanager
async def _reporting(call: Call) -> AsyncIterator[Callable[[Event], None]]:
    """Yield a function that takes events. Their text is sent now and then, by a task of its own."""
    pending = ""
    due = asyncio.Event()

    def add(event: Event) -> None:
        nonlocal pending
        if isinstance(event, Stdout | Stderr):
            pending = (pending + event.content)[-_REPORT_CHARS:]
            due.set()

    async def send() -> None:
        nonlocal pending
        while True:
            await due.wait()
            due.clear()
            text, pending = pending, ""
            await call.report(text)
            await asyncio.sleep(_REPORT_EVERY_S)

    task = asyncio.create_task(send(), name="mcp progress")
    try:
        yield add
    finally:
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # a client that is gone takes no progress; its call ends by itself
