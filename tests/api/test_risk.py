"""Policies and assessments over HTTP, over the WebSocket, and through the SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TypeAlias

import kernelbroker
import pytest
from kernelbroker.protocol.events import Input, Result, Stdout
from kernelbroker.protocol.findings import Assessment, Language, PolicyMode
from kernelbroker.protocol.messages import Closed, Done, ErrorReply
from kernelbroker_server.api import websocket
from kernelbroker_server.service.assessor import Assessor
from kernelbroker_server.service.policy import CONFIRMATION_S, Policies, Policy
from kernelbroker_server.sessions.admission import Admission
from kernelbroker_server.tenants.tenant import DEFAULT, Tenant, TenantLimits

from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.http import TOKEN, Api, serving
from tests.support.waiting import DEADLINE_S, turns, until
from tests.support.world import Breakpoint, world

RISKY = "import os\nos.system(command)"
AS_JSON = {"Accept": "application/json"}

Serve: TypeAlias = Callable[[PolicyMode], AbstractAsyncContextManager[Api]]


@pytest.fixture
def serve(backend: FakeBackend) -> Serve:
    """The broker with a policy, by which code is risky from `high` on."""

    @asynccontextmanager
    async def served(mode: PolicyMode) -> AsyncIterator[Api]:
        policies = Policies({"default": Policy(mode)})
        async with (
            asyncio.timeout(60),
            world(backend, policies=policies) as w,
            serving(w) as api,
        ):
            yield api

    return served


@pytest.mark.parametrize("mode", ["block", "confirm"])
async def test_refused_code_costs_no_sandbox(serve: Serve, mode: PolicyMode) -> None:
    """A cell without a session is assessed before it gets one."""
    async with serve(mode) as api:
        await until(lambda: api.world.pool.status().idle_containers)
        launched = api.world.backend.launched
        assert (await api.ask("POST", "/api/v1/exec", {"code": RISKY})).status in (409, 422)
        assert api.world.backend.launched == launched
        assert api.world.pool.status().idle_containers == 1


@pytest.mark.parametrize(
    ("language", "code", "level", "rule"),
    [
        ("python", RISKY, "high", "process"),
        ("shell", "curl x | sh", "critical", "code"),
        ("javascript", "eval(x)", "high", "code"),
    ],
)
async def test_assess_reports_findings_without_running_code(
    api: Api, language: str, code: str, level: str, rule: str
) -> None:
    """Code of any language is assessed without being run, with any policy."""
    body = {"code": code, "language": language}
    answer = await api.ask("POST", "/api/v1/assess", body)
    assert (answer.status, answer.json["language"], answer.json["level"]) == (200, language, level)
    worst = next(found for found in answer.json["findings"] if found["level"] == level)
    assert worst["rule"] == rule
    assert set(worst) == {"rule", "level", "line", "column", "reason"}


async def test_code_with_lone_surrogates_is_assessed(api: Api) -> None:
    """It cannot be parsed, so it is unknown; the next code is assessed as before."""
    answer = await api.ask(
        "POST", "/api/v1/assess", b'{"code": "import os; os.system(\'\\udcff\')"}'
    )
    assert (answer.status, answer.json["level"]) == (200, "high")
    answer = await api.ask("POST", "/api/v1/assess", {"code": "1"})
    assert answer.json["level"] != "high"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"code": "x" * 100_001}, "100,000 is the limit"),
        ({"code": "1", "language": "x" * 65}, "language"),
        ({"code": "1", "params": 3}, "params"),
        ({"language": "python"}, "code"),
    ],
)
async def test_assess_bounds_the_code(api: Api, body: dict[str, str], message: str) -> None:
    """The code has the same limits as that of an execution."""
    answer = await api.ask("POST", "/api/v1/assess", body)
    assert answer.status == 400
    assert message in answer.error["message"]


async def test_the_report_of_an_action(api: Api) -> None:
    """A browser's action is assessed with its parameters, and an unknown content type is high."""
    params = {"selector": "#password"}
    body = {"code": "fill", "language": "browser", "params": params}
    report = (await api.ask("POST", "/api/v1/assess", body)).json
    assert report["level"] == "high"
    assert report["requires_confirmation"] is True
    assert report["requires_isolation"] is False
    assert report["suggested_sandbox"] == "aio_sandbox"
    (text,) = report["detected_patterns"]
    assert text.startswith("[HIGH] ")
    unknown = (await api.ask("POST", "/api/v1/assess", {"code": "1", "language": "perl"})).json
    assert (unknown["level"], unknown["suggested_sandbox"]) == ("high", "docker_simple")
    async with kernelbroker.connect(f"http://127.0.0.1:{api.port}", TOKEN) as broker:
        assert (await broker.assess("fill", "browser", params)).reason == report["reason"]
        assert (await broker.assess("rm -rf /", "shell")).suggested_sandbox == "REJECT"


async def test_the_strict_rules_of_a_broker(backend: FakeBackend) -> None:
    """With `risk.rules = "strict"` and patterns of the operator, both count."""
    policies = Policies(assessor=Assessor("strict", ("secret project",)))
    async with (
        asyncio.timeout(60),
        world(backend, policies=policies) as w,
        serving(w) as api,
    ):
        for code, level in (("import sys", "high"), ("'Secret project'", "critical")):
            answer = await api.ask("POST", "/api/v1/assess", {"code": code})
            assert answer.json["level"] == level
        await policies.stop()


async def test_assess_counts_against_the_rate_of_the_tenant(backend: FakeBackend) -> None:
    """A tenant's rate counts assessments as well; beyond it the answer is 429 with `retry_after`."""
    admission = Admission(50, 100)
    admission.queue_of(Tenant(DEFAULT.name, TenantLimits(rate=2)))
    async with world(backend, admission=admission) as w, serving(w) as api:
        for _ in range(2):
            assert (await api.ask("POST", "/api/v1/assess", {"code": "1"})).status == 200
        refused = await api.ask("POST", "/api/v1/assess", {"code": "1"})
        assert (refused.status, refused.error["code"]) == (429, "too_many_requests")
        assert refused.error["retry_after"] > 0


async def test_an_assessment_ends_when_its_client_disconnects(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that goes away cancels its assessment."""
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def wait(*_: object) -> Assessment:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise
        raise AssertionError

    monkeypatch.setattr(Policies, "assess", wait)
    asked = asyncio.create_task(api.ask("POST", "/api/v1/assess", {"code": "1"}))
    await started.wait()
    asked.cancel()
    async with asyncio.timeout(DEADLINE_S):
        await cancelled.wait()
    assert isinstance(
        (await asyncio.gather(asked, return_exceptions=True))[0], asyncio.CancelledError
    )


async def test_warn_adds_findings_to_the_result(serve: Serve) -> None:
    """The findings come with the result."""
    async with serve("warn") as api:
        answer = await api.ask("POST", "/api/v1/exec", {"code": RISKY}, headers=AS_JSON)
        [found] = answer.json["result"]["findings"]
        assert (found["line"], found["level"]) == (2, "high")
        answer = await api.ask("POST", "/api/v1/exec", {"code": "1"}, headers=AS_JSON)
        assert answer.json["result"]["findings"] == []


async def test_block_refuses_risky_code(serve: Serve) -> None:
    """Risky code is answered with 422 and its findings, and other code runs."""
    async with serve("block") as api:
        answer = await api.ask("POST", "/api/v1/exec", {"code": RISKY})
        assert (answer.status, answer.error["code"]) == (422, "policy_refused")
        assert [found["rule"] for found in answer.error["findings"]] == ["process"]
        assert "confirmation" not in answer.error
        assert (await api.ask("POST", "/api/v1/exec", {"code": "1"})).status == 200


@pytest.mark.parametrize("named", [{}, {"session_id": "mine"}])
async def test_confirm_needs_a_token(serve: Serve, named: dict[str, str]) -> None:
    """A 409 has a token with which the same code runs once, with a session or without."""
    async with serve("confirm") as api:
        asked = {"code": RISKY, **named}
        refused = await api.ask("POST", "/api/v1/exec", asked)
        assert (refused.status, refused.error["code"]) == (409, "confirmation_required")
        assert refused.error["expires_in"] == CONFIRMATION_S
        assert refused.error["findings"]
        confirmed = {**asked, "confirm": refused.error["confirmation"]}
        answer = await api.ask("POST", "/api/v1/exec", confirmed, headers=AS_JSON)
        assert answer.status == 200
        assert answer.json["result"]["success"]
        assert (await api.ask("POST", "/api/v1/exec", confirmed)).status == 409


async def test_confirm_over_the_websocket(serve: Serve) -> None:
    """The refusal names its execution and brings the token; the same id can then be used."""
    async with serve("confirm") as api, api.socket() as socket:
        await socket.open()
        await socket.send("execute", code=RISKY, execution_id="e", op_id="1")
        refused = await socket.get()
        assert isinstance(refused, ErrorReply)
        assert (refused.op_id, refused.execution_id) == ("1", "e")
        assert refused.error.code == "confirmation_required"
        assert [found.line for found in refused.error.findings] == [2]
        token = refused.error.confirmation
        await socket.send("execute", code=RISKY, execution_id="e", confirm=token)
        events = await socket.events("e")
        assert isinstance(events[-1], Result)
        assert events[-1].success


async def test_cells_stay_in_order_while_a_long_one_is_assessed(serve: Serve) -> None:
    """A cell that takes long to assess runs before the short one that was sent behind it."""
    async with serve("block") as api, api.socket() as socket:
        await socket.open()
        await socket.send("execute", code="x = 1\n" * 9_000, execution_id="long")
        await socket.send("execute", code="2", execution_id="short")
        ended = [(await socket.until(Result)).execution_id for _ in range(2)]
        assert ended == ["long", "short"]


async def test_the_sdk_raises_confirmation_required(serve: Serve) -> None:
    """The SDK's exception has the findings and the token, and `confirm` runs the cell."""
    async with serve("confirm") as api:
        url = f"http://127.0.0.1:{api.port}"
        async with kernelbroker.connect(url, TOKEN) as broker, broker.session() as session:
            with pytest.raises(kernelbroker.ConfirmationRequired, match=r"os\.system") as refused:
                await session.run(RISKY)
            assert refused.value.findings[0].rule == "process"
            result = await session.run(RISKY, confirm=refused.value.confirmation)
            assert result.success
            assert result.findings == refused.value.findings
            assert (await session.run("1")).findings == []
            assert await broker.assess(RISKY) == kernelbroker.assess(RISKY)


async def test_the_sdk_raises_policy_refused(serve: Serve) -> None:
    """The SDK raises `PolicyRefused` for blocked code, also the synchronous one."""

    def blocking(url: str) -> kernelbroker.PolicyRefused:
        with kernelbroker.sync.connect(url, TOKEN) as broker, broker.session() as session:
            assert broker.assess(RISKY).level == "high"
            with pytest.raises(kernelbroker.PolicyRefused) as refused:
                session.run(RISKY)
            return refused.value

    async with serve("block") as api:
        refused = await asyncio.to_thread(blocking, f"http://127.0.0.1:{api.port}")
        assert [found.line for found in refused.findings] == [2]


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Code with "long" in it is assessed only when this is set."""
    released = asyncio.Event()
    assess = Policies.assess

    async def wait(self: Policies, code: str, language: Language) -> Assessment:
        if "long" in code:
            await released.wait()
        return await assess(self, code, language)

    monkeypatch.setattr(Policies, "assess", wait)
    return released


async def test_an_interrupt_behind_a_long_assessment(serve: Serve, slow: asyncio.Event) -> None:
    """While code is assessed, later messages are read: an interrupt, and the answer to a question."""

    async def ask(cell: Cell) -> None:
        cell.send("stdin", "input_request", {"prompt": "", "password": False})
        cell.stdout(await cell.answers.get())
        await cell.until_interrupted()

    async with serve("block") as api, api.socket() as socket:
        api.world.backend.scripts["ask"] = ask
        await socket.open()
        await socket.send("execute", code="ask", execution_id="first", allow_stdin=True)
        await socket.until(Input)
        await socket.send("execute", code="'long'", execution_id="second")
        await socket.send("stdin", execution_id="first", value="Ada")
        assert (await socket.until(Stdout)).content == "Ada"
        await socket.send("interrupt")
        result = await socket.until(Result)
        assert (result.execution_id, result.error_detail.cause) == ("first", "interrupted")
        slow.set()
        assert (await socket.until(Result)).execution_id == "second"


async def test_cells_are_accepted_in_order(serve: Serve, slow: asyncio.Event) -> None:
    """Cells run in order, however long each assessment takes, and if one is refused."""
    codes = {"a": "'long a'", "b": RISKY, "c": "'c'", "d": "'long d'", "e": "'e'"}
    async with serve("block") as api, api.socket() as socket:
        await socket.open()
        for name, code in codes.items():
            await socket.send("execute", code=code, execution_id=name)
        await socket.send("interrupt", op_id="all were read")
        assert isinstance(await socket.get(), Done)
        assert api.world.admission.waiting + api.world.admission.running == 0
        slow.set()
        ended: dict[type, list[str | None]] = {Result: [], ErrorReply: []}
        while len(ended[Result]) < 4:
            if type(message := await socket.get()) in ended:
                ended[type(message)].append(message.execution_id)
        assert ended == {Result: ["a", "c", "d", "e"], ErrorReply: ["b"]}


async def test_an_execution_that_is_being_assessed_can_be_named(
    serve: Serve, slow: asyncio.Event
) -> None:
    """What is said of it counts once it is accepted: it is replayed, or taken out of the line."""
    hold = Breakpoint()
    async with serve("block") as api, api.socket() as socket:
        api.world.backend.scripts["hold"] = hold
        await socket.open()
        await socket.send("execute", code="hold", execution_id="first")
        await hold.reached()
        await socket.send("execute", code="'long'", execution_id="second")
        await socket.send("resume", execution_id="second")
        await socket.send("interrupt", execution_id="second", op_id="i")
        slow.set()
        assert (await socket.until(Done)).op_id == "i"
        hold.go_on.set()
        results = [await socket.until(Result) for _ in range(3)]
        assert sorted(result.execution_id for result in results) == ["first", "second", "second"]
        assert {r.error for r in results} == {None, "Interrupted: interrupted before it ran"}


async def test_a_close_behind_a_long_assessment(serve: Serve, slow: asyncio.Event) -> None:
    """The session closes at once; the cell is refused before the last word."""
    async with serve("block") as api, api.socket() as socket:
        await socket.open(session_id="mine")
        await socket.send("execute", code="'long'", execution_id="e")
        await socket.send("close")
        await until(lambda: not api.world.registry.list())
        slow.set()
        refused = await socket.until(ErrorReply)
        assert (refused.execution_id, refused.error.code) == ("e", "session_gone")
        assert await socket.until(Closed)


@pytest.mark.parametrize("on_disconnect", ["continue", "interrupt"])
async def test_a_client_that_leaves_while_its_cell_is_assessed(
    serve: Serve, slow: asyncio.Event, on_disconnect: str
) -> None:
    """The cell runs when it has been assessed, or never, as was asked."""
    async with serve("block") as api:
        async with api.socket() as socket:
            await socket.open(session_id="mine")
            await socket.send(
                "execute", code="'long'", execution_id="e", on_disconnect=on_disconnect
            )
            await socket.send("interrupt")
            await socket.until(Done)
            (handler,) = api.service.websockets
            socket.connection.transport.abort()
        await until(lambda: not api.service.websockets)
        slow.set()
        await until(lambda: not handler._accepting)
        session = api.world.registry.get("mine")
        assert list(session.executions) == (["e"] if on_disconnect == "continue" else [])


async def test_a_flood_of_cells_to_assess(
    serve: Serve, slow: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only so many wait for their assessment; the rest stays with the client, and is run in its turn."""
    monkeypatch.setattr(websocket, "_MAX_ASSESSED", 3)
    async with serve("block") as api, api.socket() as socket:
        await socket.open()
        (handler,) = api.service.websockets
        names = [str(number) for number in range(10)]
        for name in names:
            await socket.send("execute", code=f"'long {name}'", execution_id=name)
        await until(lambda: len(handler._accepting) == 3)
        await turns(20)
        assert len(handler._accepting) == 3
        slow.set()
        assert [(await socket.until(Result)).execution_id for _ in names] == names
