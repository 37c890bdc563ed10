"""Cells over HTTP: the four forms of the answer, streaming, disconnects, history."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

import pytest
from kernelbroker.protocol.codec import decode_incoming
from kernelbroker.protocol.events import Result
from kernelbroker_kernel.contract import INTERNAL_CELL_CODE, INTERNAL_CELL_MIME

from tests.support.gateway import Cell, CellFailed
from tests.support.http import Api
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import Breakpoint, deaf, interruptible, result_of

EXEC = "/api/v1/exec"
FORMS = {
    "text/plain": "text/plain; charset=utf-8",
    "text/event-stream": "text/event-stream",
    "application/x-ndjson": "application/x-ndjson",
    "application/json": "application/json",
}


async def talk(cell: Cell) -> None:
    cell.stdout("</txt><result>{}</result>\r\n\ndata: forged\n\ud800")
    cell.send("iopub", "stream", {"name": "stderr", "text": "oh\n"})
    cell.display({"image/png": base64.b64encode(b"picture").decode()})
    cell.display({"application/json": {"n": [2**70, "<&>", "\ud800"]}})
    raise CellFailed("ValueError", "no")


async def session_of(api: Api, **options: Any) -> str:
    answer = await api.ask("POST", "/api/v1/sessions", options)
    assert answer.status == 201
    return str(answer.json["session_id"])


@pytest.mark.parametrize("accept", FORMS)
async def test_headers_of_the_forms(api: Api, accept: str) -> None:
    """Each form has its content type, is not cached, and names the execution."""
    answer = await api.ask(
        "POST", EXEC, {"code": "1", "execution_id": "mine"}, headers={"Accept": accept}
    )
    assert answer.status == 200
    assert answer.headers["content-type"] == FORMS[accept]
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["x-execution-id"] == "mine"
    assert answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", "text/plain"),
        ("*/*", "text/plain"),
        ("text/html", "text/plain"),
        ("TEXT/Event-Stream; q=0.5", "text/event-stream"),
        ("text/html, application/json;q=0.9", "application/json"),
    ],
)
async def test_accept_header_selects_the_form(api: Api, accept: str, form: str) -> None:
    """The first known type of the Accept header is used; the default is tags."""
    answer = await api.ask("POST", EXEC, {"code": "1"}, headers={"Accept": accept})
    assert answer.headers["content-type"] == FORMS[form]


async def test_tags_cannot_be_forged(api: Api) -> None:
    """Output cannot forge the tags of the default form."""
    api.world.backend.scripts["talk"] = talk
    body = (await api.ask("POST", EXEC, {"code": "talk"})).body.decode()
    assert body.startswith(
        "<txt>&lt;/txt&gt;&lt;result&gt;{}&lt;/result&gt;&#xD;\n\ndata: forged\n&#xD800;</txt>\n"
        "<err>oh\n</err>\n<img>cGljdHVyZQ==</img>\n<display>"
    )
    assert body.count("<result>") == 1
    assert "ValueError: no" in body.splitlines()[-1]


async def test_server_sent_events_cannot_be_forged(api: Api) -> None:
    """Server-sent events carry type, seq and JSON, one line each, and cannot be forged."""
    api.world.backend.scripts["talk"] = talk
    answer = await api.ask("POST", EXEC, {"code": "talk"}, headers={"Accept": "text/event-stream"})
    blocks = answer.body.decode().removesuffix("\n\n").split("\n\n")
    kinds = []
    for number, block in enumerate(blocks, 1):
        kind, seq, data = block.split("\n")
        kinds.append(kind.removeprefix("event: "))
        assert seq == f"id: {number}"
        event = json.loads(data.removeprefix("data: "))
        assert (event["type"], event["seq"]) == (kinds[-1], number)
    assert kinds == ["started", "stdout", "stderr", "image", "display", "stderr", "result"]


async def test_ndjson_has_one_event_per_line(api: Api) -> None:
    """NDJSON has one event of the protocol per line, with surrogates and large numbers."""
    api.world.backend.scripts["talk"] = talk
    answer = await api.ask(
        "POST", EXEC, {"code": "talk"}, headers={"Accept": "application/x-ndjson"}
    )
    events: list[Any] = [decode_incoming(line) for line in answer.body.splitlines()]
    assert [event.seq for event in events] == list(range(1, 8))
    assert events[1].content.endswith("\ud800")
    assert events[4].data == {"application/json": {"n": [2**70, "<&>", "\ud800"]}}
    assert isinstance(events[-1], Result)


async def test_json_answer_has_the_collected_output(api: Api) -> None:
    """The JSON form is one body at the end, with the collected output and the result."""
    api.world.backend.scripts["talk"] = talk
    answer = await api.ask("POST", EXEC, {"code": "talk"}, headers={"Accept": "application/json"})
    body = answer.json
    assert body["stdout"].endswith("\ud800")
    assert body["stderr"] == "oh\nValueError\nno\n"
    assert [image["content"] for image in body["images"]] == ["cGljdHVyZQ=="]
    assert len(body["displays"]) == 1
    assert body["result"]["error"] == "ValueError: no"
    assert body["execution_id"] == answer.headers["x-execution-id"]


@pytest.mark.parametrize("accept", FORMS)
@pytest.mark.parametrize("depth", [900, 960, 970, 975, 980, 985, 990, 995])
async def test_deeply_nested_output_has_a_result_in_every_form(
    api: Api, accept: str, depth: int
) -> None:
    """A cell with deeply nested output has a result in every form."""

    async def nest(cell: Cell) -> None:
        nested = b"[" * depth + b"]" * depth
        content = b'{"metadata":{},"data":{"application/json":' + nested + b',"x":"\\ud800"}}'
        cell.send("iopub", "display_data", content)

    api.world.backend.scripts["nest"] = nest
    answer = await api.ask("POST", EXEC, {"code": "nest"}, headers={"Accept": accept})
    assert answer.status == 200
    assert b"success" in answer.body


@pytest.mark.parametrize("accept", [form for form in FORMS if form != "application/json"])
async def test_output_is_streamed_while_the_cell_runs(api: Api, accept: str) -> None:
    """A client reads the output of a cell while the cell runs."""
    hold = Breakpoint()

    async def print_and_wait(cell: Cell) -> None:
        cell.stdout("first words")
        await hold(cell)

    api.world.backend.scripts["talk"] = print_and_wait
    async with api.exchange("POST", EXEC, {"code": "talk"}, {"Accept": accept}) as exchange:
        seen = b""
        async with asyncio.timeout(DEADLINE_S):
            while b"first words" not in seen:
                seen += await exchange.chunk()
        assert not hold.go_on.is_set()
        hold.go_on.set()
        async with asyncio.timeout(DEADLINE_S):
            assert b"success" in await exchange.body()


async def test_a_text_body_is_the_code(api: Api) -> None:
    """A body of a text type is the code itself."""
    answer = await api.ask("POST", EXEC, b"1 + 1\n", headers={"Content-Type": "text/x-python"})
    assert b'"success":true' in answer.body
    refused = await api.ask("POST", EXEC, b"\xff", headers={"Content-Type": "text/plain"})
    assert refused.status == 400
    assert "UTF-8" in refused.error["message"]


async def test_a_cell_without_a_session_removes_its_sandbox(api: Api) -> None:
    """A sandbox of a single cell is gone when the answer is complete."""
    assert (await api.ask("POST", EXEC, {"code": "1"})).status == 200
    await until(lambda: not api.world.registry.list())
    await until(lambda: api.world.pool.status().busy_containers == 0)


async def test_a_cell_with_a_session_id_runs_in_it(api: Api) -> None:
    """A cell with a session id runs in that session, which is opened if necessary."""
    for body in ({"code": "a", "session_id": "mine"}, {"code": "b", "session_id": "mine"}):
        assert (await api.ask("POST", EXEC, body)).status == 200
    assert (await api.ask("POST", "/api/v1/sessions/mine/exec", {"code": "c"})).status == 200
    cells = api.world.backend.cells
    assert [cell.code for cell in cells] == ["a", "b", "c"]
    assert len({cell.kernel for cell in cells}) == 1


async def test_contradictory_session_ids_are_refused(api: Api) -> None:
    """A body with another session id than the path is refused; an unknown id is not found."""
    await session_of(api, session_id="mine")
    body = {"code": "1", "session_id": "other"}
    assert (await api.ask("POST", "/api/v1/sessions/mine/exec", body)).status == 400
    assert (await api.ask("POST", "/api/v1/sessions/other/exec", {"code": "1"})).status == 404


async def test_a_repeated_execution_id_is_the_same_execution(api: Api) -> None:
    """An equal request with the same id gets the same events; a different one is a conflict."""
    await session_of(api, session_id="mine")
    path = "/api/v1/sessions/mine/exec"
    first = await api.ask("POST", path, {"code": "a", "execution_id": "e"})
    again = await api.ask("POST", path, {"code": "a", "execution_id": "e"})
    assert again.body == first.body
    other = await api.ask("POST", path, {"code": "b", "execution_id": "e"})
    assert (other.status, other.error["code"]) == (409, "conflict")
    assert len(api.world.backend.cells) == 1


async def test_a_full_queue_gets_429(api: Api) -> None:
    """A full queue is answered with 429 and Retry-After."""
    api.world.admission.max_queued = 0
    answer = await api.ask("POST", EXEC, {"code": "1"})
    assert (answer.status, answer.error["code"]) == (429, "too_many_requests")
    assert int(answer.headers["retry-after"]) >= 1
    assert answer.error["retry_after"] >= 1


@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": "k"}])
async def test_a_refused_cell_leases_no_sandbox(api: Api, headers: dict[str, str]) -> None:
    """A refused cell without a session leases no sandbox."""
    await until(lambda: api.world.pool.status().idle_containers)
    launched = api.world.backend.launched
    api.world.admission.max_queued = 0
    assert (await api.ask("POST", EXEC, {"code": "1"}, headers=headers)).status == 429
    api.world.admission.max_queued = 10
    too_long = {"code": "1", "timeout": 1e9}
    assert (await api.ask("POST", EXEC, too_long, headers=headers)).status == 400
    assert api.world.backend.launched == launched
    assert api.world.pool.status().idle_containers == 1


# Clients that go away.


@pytest.mark.parametrize("on_disconnect", ["continue", "interrupt"])
async def test_on_disconnect_selects_continue_or_interrupt(api: Api, on_disconnect: str) -> None:
    """After a disconnect the cell continues or is interrupted, as its request says."""
    hold = Breakpoint()

    async def work(cell: Cell) -> None:
        cell.stdout("running")
        stop = asyncio.ensure_future(cell.interrupted.wait())
        go_on = asyncio.ensure_future(hold(cell))
        await asyncio.wait([stop, go_on], return_when=asyncio.FIRST_COMPLETED)
        if stop.done():
            go_on.cancel()
            raise CellFailed("KeyboardInterrupt", "")
        stop.cancel()

    api.world.backend.scripts["work"] = work
    await session_of(api, session_id="mine")
    body = {"code": "work", "execution_id": "e", "on_disconnect": on_disconnect}
    async with api.exchange("POST", "/api/v1/sessions/mine/exec", body) as exchange:
        async with asyncio.timeout(DEADLINE_S):
            assert b"running" in await exchange.chunk()
        exchange.hang_up()
    execution = api.world.registry.get("mine").execution("e")
    if on_disconnect == "continue":
        assert (await api.ask("GET", "/health")).status == 200  # what was sent before is seen
        assert execution.state == "running"
        hold.go_on.set()
    result = await result_of(execution)
    assert result.success == (on_disconnect == "continue")
    assert (await api.ask("GET", "/api/v1/sessions/mine")).json["restarts"] == 0


async def test_a_waiting_cell_is_dropped_on_disconnect(api: Api) -> None:
    """A waiting cell with `on_disconnect` interrupt does not run after a disconnect."""
    hold = Breakpoint()
    api.world.backend.scripts["hold"] = hold
    await session_of(api, session_id="mine")
    session = api.world.registry.get("mine")
    path = "/api/v1/sessions/mine/exec"
    async with api.exchange("POST", path, {"code": "hold"}):
        await hold.reached()
        body = {"code": "never", "execution_id": "e", "on_disconnect": "interrupt"}
        async with api.exchange("POST", path, body) as exchange:
            exchange.hang_up()
        await until(lambda: session.execution("e").state == "done")
        hold.go_on.set()
    assert "never" not in [cell.code for cell in api.world.backend.cells]


@pytest.mark.parametrize("accept", FORMS)
async def test_a_single_cell_ends_on_disconnect(api: Api, accept: str) -> None:
    """A cell without a session ends with its sandbox when its client disconnects."""
    running = asyncio.Event()

    async def work(cell: Cell) -> None:
        running.set()
        await deaf(cell)

    api.world.backend.scripts["deaf"] = work
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    body = b'{"code":"deaf"}'
    writer.write(
        b"POST /api/v1/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-token\r\n"
        + f"Accept: {accept}\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    async with asyncio.timeout(DEADLINE_S):
        await running.wait()
    writer.transport.abort()
    await until(lambda: not api.world.registry.list())
    await until(lambda: api.world.pool.status().busy_containers == 0)
    writer.close()


async def test_a_disconnect_cancels_the_wait_for_a_sandbox(api: Api) -> None:
    """A client that disconnects before it has a sandbox leaves no waiter."""
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    await until(lambda: api.world.pool.status().idle_containers == 1)
    api.world.backend.on_launch = launch
    taken = await api.world.open()
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        b"POST /api/v1/exec HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-token\r\n"
        b"Content-Length: 12\r\n\r\n" + b'{"code":"1"}'
    )
    await until(lambda: api.world.pool.status().pending_requests == 1)
    writer.transport.abort()
    await until(lambda: api.world.pool.status().pending_requests == 0)
    hold.set()
    await taken.close("done")
    writer.close()


async def test_a_slow_reader_does_not_hold_the_sandbox(api: Api) -> None:
    """A single cell gives its sandbox back at its end, not when the client has read everything."""

    async def talk(cell: Cell) -> None:
        for _ in range(90):
            cell.stdout("x" * 100_000)

    api.world.backend.scripts["talk"] = talk
    headers = {"Accept": "application/x-ndjson"}
    async with api.exchange("POST", EXEC, {"code": "talk"}, headers=headers) as exchange:
        await until(lambda: api.world.backend.cells)
        await until(lambda: not api.world.registry.list())
        await until(lambda: api.world.pool.status().busy_containers == 0)
        assert (await exchange.body()).count(b"x") > 9_000_000  # and nothing is lost by that


async def test_a_disconnect_cancels_the_opening_of_a_session(api: Api) -> None:
    """A session whose client has disconnected is not opened."""
    await until(lambda: api.world.pool.status().idle_containers == 1)
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    api.world.backend.on_launch = launch
    taken = await api.world.open()
    _, writer = await asyncio.open_connection("127.0.0.1", api.port)
    writer.write(
        b"POST /api/v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer the-token\r\n"
        b"Content-Length: 2\r\n\r\n{}"
    )
    await until(lambda: api.world.pool.status().pending_requests == 1)
    writer.transport.abort()
    await until(lambda: api.world.pool.status().pending_requests == 0)
    hold.set()
    assert api.world.registry.list() == [taken]
    writer.close()


# What ran.


async def test_executions_are_listed_and_replayed(api: Api) -> None:
    """Executions can be listed, read, and replayed from any event."""
    hold = Breakpoint()
    api.world.backend.scripts |= {"talk": talk, "hold": hold}
    await session_of(api, session_id="mine")
    path = "/api/v1/sessions/mine"
    await api.ask("POST", f"{path}/exec", {"code": "talk", "execution_id": "a"})
    async with api.exchange("POST", f"{path}/exec", {"code": "hold", "execution_id": "b"}):
        await hold.reached()
        listed = (await api.ask("GET", f"{path}/executions")).json["executions"]
        assert [(e["execution_id"], e["state"], e["success"]) for e in listed] == [
            ("a", "done", False),
            ("b", "running", None),
        ]
        hold.go_on.set()
    one = (await api.ask("GET", f"{path}/executions/a")).json
    assert one["result"]["error"] == one["error"] == "ValueError: no"
    whole = (await api.ask("GET", f"{path}/executions/a/events")).body.splitlines()
    assert len(whole) == 7
    rest = await api.ask("GET", f"{path}/executions/a/events?after=5")
    assert rest.headers["content-type"] == "application/x-ndjson"
    assert rest.body.splitlines() == whole[5:]
    assert (await api.ask("GET", f"{path}/executions/a/events?after={10**30}")).body == b""
    for after in ("-1", "x", "1.5", "%C2%B2", "%ff"):
        answer = await api.ask("GET", f"{path}/executions/a/events?after={after}")
        assert answer.status == 400
        assert answer.error["code"] == "bad_request"
    assert (await api.ask("GET", f"{path}/executions/c")).status == 404


async def test_executions_of_a_closed_session_can_be_read(api: Api) -> None:
    """Executions can be listed and replayed after the end of their session, and next to a new one."""
    api.world.backend.scripts["talk"] = talk
    path = "/api/v1/sessions/mine"
    reads = [f"{path}/executions", f"{path}/executions/a", f"{path}/executions/a/events"]
    await session_of(api, session_id="mine")
    await api.ask("POST", f"{path}/exec", {"code": "talk", "execution_id": "a"})
    before = [(await api.ask("GET", each)).json for each in reads[:2]]
    events = (await api.ask("GET", reads[2])).body
    assert (await api.ask("DELETE", path)).status == 204
    assert [(await api.ask("GET", each)).json for each in reads[:2]] == before
    assert (await api.ask("GET", reads[2])).body == events
    assert (await api.ask("GET", f"{path}/executions/b")).status == 410
    assert (await api.ask("POST", f"{path}/exec", {"code": "talk"})).status == 410
    api.world.registry._gone._reasons.clear()  # as after a restart
    assert (await api.ask("GET", reads[2])).body == events
    assert (await api.ask("POST", f"{path}/exec", {"code": "talk"})).status == 410
    await session_of(api, session_id="mine")
    assert (await api.ask("GET", reads[0])).json == {"executions": []}
    assert (await api.ask("GET", reads[2])).body == events


async def test_follow_a_running_cell(api: Api) -> None:
    """The events of a running cell are replayed, then followed to the result."""
    hold = Breakpoint()

    async def talk_twice(cell: Cell) -> None:
        cell.stdout("one")
        await hold(cell)
        cell.stdout("two")

    api.world.backend.scripts["talk"] = talk_twice
    await session_of(api, session_id="mine")
    path = "/api/v1/sessions/mine"
    body = {"code": "talk", "execution_id": "e"}
    async with api.exchange("POST", f"{path}/exec", body):
        await hold.reached()
        async with api.exchange("GET", f"{path}/executions/e/events?after=1") as following:
            async with asyncio.timeout(DEADLINE_S):
                assert b"one" in await following.chunk()
                hold.go_on.set()
                rest = (await following.body()).splitlines()
        assert [json.loads(line)["type"] for line in rest] == ["stdout", "result"]


# Sessions.


async def test_session_life_cycle_over_http(api: Api) -> None:
    """A session is opened, read, changed, interrupted, restarted and closed."""
    options = {"session_id": "mine", "metadata": {"a": 1}, "idle_timeout": 60}
    opened = await api.ask("POST", "/api/v1/sessions", options)
    assert opened.status == 201
    assert (await api.ask("POST", "/api/v1/sessions", options)).status == 200
    path = "/api/v1/sessions/mine"
    look = (await api.ask("GET", path)).json
    assert (look["state"], look["metadata"], look["idle_timeout"]) == ("idle", {"a": 1}, 60)
    assert look["isolation"] == "process"
    listed = (await api.ask("GET", "/api/v1/sessions")).json["sessions"]
    assert [s["session_id"] for s in listed] == ["mine"]
    changed = (await api.ask("PATCH", path, {"idle_timeout": 90, "metadata": {}})).json
    assert (changed["idle_timeout"], changed["metadata"]) == (90, {})
    assert (await api.ask("PATCH", path, {"max_lifetime": 1e9})).status == 400
    assert (await api.ask("PATCH", path, {"colour": "red"})).status == 400
    assert (await api.ask("POST", f"{path}/interrupt")).status == 202
    assert (await api.ask("POST", f"{path}/restart")).json["restarts"] == 1
    closed = await api.ask("DELETE", path)
    assert (closed.status, closed.body) == (204, b"")
    for method, suffix in [("GET", ""), ("DELETE", ""), ("POST", "/interrupt"), ("POST", "/exec")]:
        answer = await api.ask(method, path + suffix, {"code": "1"} if suffix == "/exec" else b"")
        assert (answer.status, answer.error["code"]) == (410, "session_gone")
        assert "its client closed it" in answer.error["message"]
    assert (await api.ask("GET", "/api/v1/sessions/other")).status == 404


async def test_interrupt_over_http_reaches_the_running_cell(api: Api) -> None:
    """An interrupt reaches the running cell of the session."""
    api.world.backend.scripts["wait"] = interruptible
    await session_of(api, session_id="mine")
    async with api.exchange("POST", "/api/v1/sessions/mine/exec", {"code": "wait"}) as exchange:
        async with asyncio.timeout(DEADLINE_S):
            assert b"running" in await exchange.chunk()
            await api.ask("POST", "/api/v1/sessions/mine/interrupt")
            assert b'"cause":"interrupted"' in await exchange.body()


async def test_a_stopping_broker_gets_503(api: Api) -> None:
    """A stopping broker answers 503 with Retry-After."""
    await api.world.registry.stop("closing time")
    answer = await api.ask("POST", EXEC, {"code": "1"})
    assert (answer.status, answer.error["code"]) == (503, "unavailable")
    assert int(answer.headers["retry-after"]) >= 1


async def test_secrets_are_masked_in_variables(api: Api) -> None:
    """Secrets are masked in the answers of internal cells."""

    async def refuse(cell: Cell) -> None:
        cell.display(
            {INTERNAL_CELL_MIME: {"refused": {"code": "conflict", "message": "no hunter2-s"}}}
        )

    api.world.backend.scripts[INTERNAL_CELL_CODE] = refuse
    await session_of(api, session_id="mine", secrets={"S": "hunter2-s"})
    answer = await api.ask("GET", "/api/v1/sessions/mine/variables/x?format=arrow")
    assert (answer.status, answer.error["message"]) == (409, "no ***")


async def test_secrets_reach_only_the_kernel(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    """Secrets reach the kernel as variables; no output, history or log contains them."""
    caplog.set_level("DEBUG")
    got: list[Any] = []

    async def tell(cell: Cell) -> None:
        got.append(cell.metadata["kernelbroker"]["env"])
        cell.stdout("both: of-session of-cell\n")

    api.world.backend.scripts["tell"] = tell
    body = {"session_id": "mine", "secrets": {"S": "of-session"}, "env": {"A": "1"}}
    opened = await api.ask("POST", "/api/v1/sessions", body)
    asked = {"code": "tell", "execution_id": "e", "secrets": {"C": "of-cell"}, "env": {"B": "2"}}
    answer = await api.ask("POST", "/api/v1/sessions/mine/exec", asked)
    assert got == [{"B": "2", "C": "of-cell"}]
    configured = [
        cell.metadata["kernelbroker"]["configure"]["env"]
        for sandbox in api.world.backend.live.values()
        for cell in sandbox.gateway.cells
        if "configure" in cell.metadata.get("kernelbroker", {})
    ]
    assert configured == [{"A": "1", "S": "of-session"}]
    assert b"both: *** ***" in answer.body
    seen = [opened, answer]
    for path in ("", "/executions", "/executions/e", "/executions/e/events"):
        seen.append(await api.ask("GET", f"/api/v1/sessions/mine{path}"))
    for each in seen:
        assert b"of-session" not in each.body
        assert b"of-cell" not in each.body
    assert "of-session" not in caplog.text
    assert "of-cell" not in caplog.text
