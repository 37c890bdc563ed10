"""What happens between a call and its result: progress, questions to the person, cancellation."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from kernelbroker.analysis.cells import source_of
from kernelbroker_kernel.contract import REPORT_CODE, REPORT_MIME
from kernelbroker_server.service.policy import Policies, Policy
from mcp.client.client import Client
from mcp_types import (
    CallToolResult,
    ElicitRequestParams,
    ElicitResult,
    EmptyResult,
    LoggingMessageNotificationParams,
    SetLevelRequest,
    SetLevelRequestParams,
)

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.mcp import ERAS, Era, McpApi, mcp_api, text_of
from tests.support.waiting import until
from tests.support.world import Breakpoint, interruptible

RISKY = "import os\nos.system(command)"
ELICITS = {"elicitation": {}}
"""The capabilities of a client that can ask its person."""


def confirming() -> dict[str, Any]:
    """A broker whose policy asks before it runs risky code."""
    return {"policies": Policies({"default": Policy("confirm")})}


class Person:
    """Answers questions, and remembers them."""

    def __init__(self, action: Literal["accept", "decline", "cancel"], value: str = "") -> None:
        self.answer = ElicitResult(action=action, content={"value": value} if value else None)
        self.asked: list[str] = []

    async def __call__(self, _context: Any, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        return self.answer


async def run(client: Client, code: str, **arguments: Any) -> CallToolResult:
    result = await client.call_tool("run_code", {"code": code, **arguments})
    assert isinstance(result, CallToolResult)
    return result


@pytest.mark.parametrize("era", ERAS)
async def test_output_is_progress(era: Era, api: McpApi, backend: FakeBackend) -> None:
    """While a cell runs, its output comes as progress, and to older clients as log messages as well."""
    point = Breakpoint()

    async def speaks(cell: Cell) -> None:
        cell.stdout("half way\n")
        await point(cell)

    backend.scripts["speak()"] = speaks
    progress: list[tuple[float, str | None]] = []
    logged: list[Any] = []

    async def on_progress(at: float, _total: float | None, message: str | None) -> None:
        progress.append((at, message))

    async def on_log(params: LoggingMessageNotificationParams) -> None:
        logged.append(params.data)

    async with api.client(era, logging_callback=on_log) as client:
        call = asyncio.create_task(
            client.call_tool("run_code", {"code": "speak()"}, progress_callback=on_progress)
        )
        await until(lambda: progress)
        assert not call.done()
        point.go_on.set()
        await call
    assert progress == [(1.0, "half way\n")]
    assert logged == (["half way\n"] if era == "legacy" else [])


async def test_an_older_client_can_turn_log_messages_off(api: McpApi, backend: FakeBackend) -> None:
    """After logging/setLevel with a higher level there are none."""
    point = Breakpoint()

    async def speaks(cell: Cell) -> None:
        cell.stdout("half way\n")
        await point(cell)

    backend.scripts["speak()"] = speaks
    logged: list[Any] = []
    progress: list[Any] = []

    async def on_log(params: LoggingMessageNotificationParams) -> None:
        logged.append(params.data)

    async def on_progress(*at: Any) -> None:
        progress.append(at)

    async with api.client("legacy", logging_callback=on_log) as client:
        await client.session.send_request(
            SetLevelRequest(params=SetLevelRequestParams(level="warning")), EmptyResult
        )
        call = asyncio.create_task(
            client.call_tool("run_code", {"code": "speak()"}, progress_callback=on_progress)
        )
        await until(lambda: progress)
        point.go_on.set()
        await call
    assert logged == []


@pytest.mark.parametrize("era", ERAS)
async def test_cancelling_a_call_interrupts_its_cell(
    era: Era, api: McpApi, backend: FakeBackend
) -> None:
    """The session is idle again, and keeps its variables."""
    backend.scripts["wait()"] = interruptible
    await api.world.open("mine")
    async with api.client(era) as client:
        call = asyncio.create_task(run(client, "wait()", session_id="mine"))
        await until(lambda: backend.cells)
        call.cancel()
        await asyncio.wait([call])
        session = api.world.registry.get("mine")
        await until(lambda: session.state == "idle")
        (log,) = session.executions.values()
        assert log.outcome == "interrupted"
        assert not (await run(client, "1", session_id="mine")).is_error


@pytest.mark.parametrize("era", ERAS)
async def test_risky_code_runs_when_the_person_agrees(era: Era, backend: FakeBackend) -> None:
    """The person sees the reasons and the code."""
    person = Person("accept")
    async with (
        mcp_api(backend, world_options=confirming()) as api,
        api.client(era, elicitation_callback=person) as client,
    ):
        result = await run(client, f"{RISKY}  # \u202e")
    assert not result.is_error, text_of(result)
    (question,) = person.asked
    assert "os.system(command)" in question and "line 2" in question
    assert "# ⟨U+202E⟩" in question


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("action", ["decline", "cancel"])
async def test_risky_code_does_not_run_against_the_person(
    era: Era, action: Any, backend: FakeBackend
) -> None:
    """The error says that the person does not want it."""
    async with (
        mcp_api(backend, world_options=confirming()) as api,
        api.client(era, elicitation_callback=Person(action)) as client,
    ):
        result = await run(client, RISKY)
        assert result.is_error and "the person does not want" in text_of(result)
        assert result.structured_content["session_id"]
        assert backend.cells == []


@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_cannot_ask_learns_how_to_confirm(
    era: Era, backend: FakeBackend
) -> None:
    """The error has the arguments of the next call; the confirmation works once, in this session."""
    async with mcp_api(backend, world_options=confirming()) as api, api.client(era) as client:
        refused = await run(client, RISKY)
        assert refused.is_error and "Ask the person" in text_of(refused)
        session_id = refused.structured_content["session_id"]
        confirm = text_of(refused).partition("confirm='")[2].partition("'")[0]
        assert f"session_id='{session_id}'" in text_of(refused) and confirm
        other = await run(client, RISKY, confirm=confirm, session_id=(await api.world.open()).id)
        assert other.is_error
        again = await run(client, RISKY)
        confirm = text_of(again).partition("confirm='")[2].partition("'")[0]
        session_id = again.structured_content["session_id"]
        assert not (await run(client, RISKY, confirm=confirm, session_id=session_id)).is_error
        assert (await run(client, RISKY, confirm=confirm, session_id=session_id)).is_error


async def test_the_confirmation_of_a_question_is_sealed(backend: FakeBackend) -> None:
    """A client gets no confirmation that it could use without asking; another tenant's state is refused,
    and so is the state of other arguments."""
    async with mcp_api(backend, world_options=confirming()) as api:
        asked = await api.post(
            "tools/call", {"name": "run_code", "arguments": {"code": RISKY}}, ELICITS
        )
        assert asked["result"]["resultType"] == "input_required"
        state = asked["result"]["requestState"]
        assert "confirm" not in state and len(state) > 100
        (name,) = asked["result"]["inputRequests"]
        accepted = {"inputResponses": {name: {"action": "accept"}}, "requestState": state}
        for arguments, changed in [
            ({"code": RISKY + "\n"}, accepted),
            ({"code": RISKY}, {**accepted, "requestState": state[:-2] + "AA"}),
        ]:
            params = {"name": "run_code", "arguments": arguments, **changed}
            refused = await api.post("tools/call", params, ELICITS)
            assert refused["error"]["message"] == "Invalid or expired requestState"
        params = {"name": "run_code", "arguments": {"code": RISKY}, **accepted}
        result = (await api.post("tools/call", params, ELICITS))["result"]
        assert not result.get("isError"), result


async def test_a_restarted_server_accepts_what_it_has_sealed(backend: FakeBackend) -> None:
    """The key lasts, so that a person may answer after a restart of the server."""
    async with mcp_api(backend, world_options=confirming()) as api:
        params = {"name": "run_code", "arguments": {"code": RISKY}}
        asked = (await api.post("tools/call", params, ELICITS))["result"]
        (name,) = asked["inputRequests"]
        answered = {"inputResponses": {name: {"action": "accept"}}}
        async with api.second_server() as second:
            params |= {**answered, "requestState": asked["requestState"]}
            result = (await second.post("tools/call", params, ELICITS))["result"]
            assert not result.get("isError"), result


@pytest.mark.parametrize("era", ERAS)
async def test_input_is_asked_for(era: Era, api: McpApi, backend: FakeBackend) -> None:
    """`input()` in a cell asks the person, and goes on with the answer."""

    async def asks(cell: Cell) -> None:
        cell.stdout("before\n")
        cell.send("stdin", "input_request", {"prompt": "Your name? ", "password": False})
        cell.stdout(f"hello {await cell.answers.get()}\n")

    backend.scripts["ask()"] = asks
    person = Person("accept", "Ada")
    async with api.client(era, elicitation_callback=person) as client:
        result = await run(client, "ask()")
    assert person.asked == ["Your name? "]
    assert result.structured_content["output"] == "before\nhello Ada"


@pytest.mark.parametrize("era", ERAS)
async def test_risky_code_of_an_analysis_asks_the_person(era: Era, backend: FakeBackend) -> None:
    """The cell that reads the file is not assessed; the caller's code is, also if it begins like it."""
    person = Person("decline")
    risky = f"{source_of('harness.py')}\n{RISKY}\ndef analyze(df):\n    return df\n"

    async def reads(cell: Cell) -> None:
        table = {"name": "a", "rows": 1, "width": 1, "columns": ["n"], "dtypes": [], "head": []}
        cell.display({REPORT_MIME: {"return_value": {"tables": [table]}}})

    backend.scripts[REPORT_CODE] = reads
    async with (
        mcp_api(backend, world_options=confirming()) as api,
        api.client(era, elicitation_callback=person) as client,
    ):
        arguments = {"file_path": "uploads/a.csv", "analysis_type": "x", "code": risky}
        result = await client.call_tool("analyze_data", arguments)
    assert len(person.asked) == 1 and "os.system" in person.asked[0]
    assert result.is_error and "the person does not want" in text_of(result)
