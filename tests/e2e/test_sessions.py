"""The life of a session: its state, the order of cells, history, resuming, and the end."""

from __future__ import annotations

import asyncio
import json

import kernelbroker
import pytest
from kernelbroker import events
from websockets.asyncio.client import ClientConnection, connect

from tests.e2e.support import (
    DEADLINE_S,
    LOOP_UNTIL_INTERRUPTED,
    BrokerProcess,
    call,
    opened,
    until,
    whole_system,
)
from tests.support.results import cause_of

pytestmark = whole_system

NDJSON = "application/x-ndjson"


async def test_a_failed_cell_is_rolled_back(session: kernelbroker.Session) -> None:
    """After a failed cell new data is gone and old names keep their objects; `keep` keeps everything."""
    await session.run("old = 1")
    failed = "old = 2\nnew = 3\n1 / 0"
    result = await session.run(failed)
    assert result.error == "ZeroDivisionError: division by zero"
    assert (await session.run("print(old, 'new' in globals())")).stdout == "2 False\n"
    await session.run(failed, on_error="keep")
    assert (await session.run("print(old, new)")).stdout == "2 3\n"


async def test_cwd_and_env_of_an_execution(session: kernelbroker.Session) -> None:
    """Directory and variables of an execution apply to it alone, and are undone after it."""
    show = "import os; print(os.getcwd(), os.environ.get('WHO'), os.environ.get('HOME'))"
    await session.run("import os; os.makedirs('/data/below/here', exist_ok=True)")
    before = (await session.run(show)).stdout
    result = await session.run(show, cwd="below/here", env={"WHO": "me", "HOME": "/tmp"})
    assert result.stdout == "/data/below/here me /tmp\n"
    result = await session.run(show + "; 1 / 0", cwd="/tmp", env={"WHO": "you"})
    assert result.stdout.startswith("/tmp you ")
    assert (await session.run(show)).stdout == before
    result = await session.run("print('ran')", cwd="nowhere")
    assert (result.success, result.stdout) == (False, "")
    assert "nowhere" in str(result.error)


async def test_cwd_and_env_of_a_session(client: kernelbroker.Broker) -> None:
    """Directory and variables of a session apply to all its cells, programs and kernels."""
    show = "import os, subprocess; print(os.getcwd(), os.environ.get('SECRET')); "
    show += "_ = subprocess.run('echo $SECRET', shell=True)"
    secret = 'it\'s "quoted"; $(rm) \\'
    async with (
        client.session(env={"SECRET": secret}, cwd="work") as session,
        client.session() as other,
    ):
        result = await session.run(show)
        assert sorted(result.stdout.splitlines()) == sorted([f"/data/work {secret}", secret])
        await session.restart()
        result = await session.run(show)
        assert sorted(result.stdout.splitlines()) == sorted([f"/data/work {secret}", secret])
        assert (await other.run(show)).stdout == "/data None\n\n"


async def test_the_result_lists_variables(session: kernelbroker.Session) -> None:
    """The result lists the session's variables with type and size, without calling into them."""
    result = await session.run(
        "import numpy as np\n"
        "class Loud:\n    def __repr__(self): raise SystemExit\n    __len__ = __repr__\n"
        "loud, numbers, array, _hidden = Loud(), [1, 2, 3], np.zeros((2, 5)), 1"
    )
    held = {variable.name: variable for variable in result.variables}
    assert held["loud"].type.endswith("Loud")
    assert (held["numbers"].type, held["numbers"].length) == ("list", 3)
    assert (held["array"].type, held["array"].shape) == ("ndarray", [2, 5])
    assert not {"In", "Out", "get_ipython", "exit", "_"} & set(held)
    result = await session.run("globals().update({f'v{i}': i for i in range(500)})")
    assert len(result.variables) == 100
    assert result.truncated is not None
    assert result.truncated.variables > 400


async def test_the_result_lists_changed_files(session: kernelbroker.Session) -> None:
    """The result lists the workspace files that the cell created or changed, and no others."""
    result = await session.run(
        "import os\nos.makedirs('/data/out/deep', exist_ok=True)\n"
        "_ = open('/data/out/deep/数据.csv', 'w').write('a,b'), open('/tmp/elsewhere', 'w').write('x')"
    )
    assert [(file.path, file.size) for file in result.files] == [("out/deep/数据.csv", 3)]
    result = await session.run("_ = open('/data/out/deep/数据.csv', 'a').write('c')")
    assert [(file.path, file.size) for file in result.files] == [("out/deep/数据.csv", 4)]
    assert (await session.run("open('/data/out/deep/数据.csv').read()")).files == []


async def test_cells_run_in_order(session: kernelbroker.Session) -> None:
    """Cells of one session run one after the other, in order of arrival."""
    await session.run("ran = []")
    cells = [f"import time; time.sleep(0.0{5 - i}); ran.append({i})" for i in range(5)]
    await asyncio.gather(*(session.run(cell) for cell in cells))
    assert (await session.run("ran", result_var="ran")).return_value == [0, 1, 2, 3, 4]


async def test_sessions_run_in_parallel(client: kernelbroker.Broker) -> None:
    """A running cell delays no other session."""
    async with client.session() as one, client.session() as other:
        said = []
        async for event in one.stream(LOOP_UNTIL_INTERRUPTED, timeout=60):
            if isinstance(event, events.Stdout):
                said.append((await other.run("print(1)")).stdout)
                await one.interrupt()
        assert said == ["1\n"]
        assert cause_of(event) == "interrupted"


async def test_interrupt_and_restart_over_rest(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """REST interrupts what the SDK runs; a restart loses the variables and keeps the files."""
    path = f"/api/v1/sessions/{session.session_id}"
    await session.run("kept = 1; _ = open('/data/kept', 'w').write('here')")
    async for event in session.stream(LOOP_UNTIL_INTERRUPTED, timeout=60):
        if isinstance(event, events.Stdout):
            assert (await call(broker, "POST", f"{path}/interrupt"))[0] == 202
    assert isinstance(event, events.Result)
    assert str(event.error).startswith("KeyboardInterrupt")
    assert (await session.run("print(kept)")).stdout == "1\n"
    status, info = await call(broker, "POST", f"{path}/restart")
    assert (status, info["restarts"] > 0) == (200, True)
    result = await session.run("print('kept' in globals(), open('/data/kept').read())")
    assert result.stdout == "False here\n"


async def test_restart_of_a_running_cell(client: kernelbroker.Broker) -> None:
    """A restart ends the running cell with the reason, and waiting cells run in the new kernel."""
    async with client.session() as session:
        results = []
        waiting: asyncio.Task[kernelbroker.ExecutionResult] | None = None
        async for event in session.stream(LOOP_UNTIL_INTERRUPTED, timeout=60):
            if isinstance(event, events.Stdout):
                waiting = asyncio.create_task(session.run("print('time' in globals())"))
                await session.restart()
            if isinstance(event, events.Result):
                results.append(event)
        assert [result.error for result in results] == ["Restarted: the kernel was restarted"]
        assert results[0].kernel_restarted
        assert waiting is not None
        assert (await waiting).stdout == "False\n"


async def test_executions_are_listed_and_replayed(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """Executions are listed, read and replayed from any event."""
    async with client.session() as session:
        results = [await session.run(code) for code in ("print(1)", "1/0", "print('a'); 'b'")]
        path = f"/api/v1/sessions/{session.session_id}/executions"
        _, listed = await call(broker, "GET", path)
        assert [one["execution_id"] for one in listed["executions"]] == [
            result.execution_id for result in results
        ]
        assert [one["success"] for one in listed["executions"]] == [True, False, True]
        assert listed["executions"][1]["error"] == "ZeroDivisionError: division by zero"
        _, one = await call(broker, "GET", f"{path}/{results[2].execution_id}")
        assert (one["state"], one["result"]["success"]) == ("done", True)
        async with opened(
            broker, "GET", f"{path}/{results[2].execution_id}/events", accept=NDJSON
        ) as response:
            everything = (await response.rest()).splitlines()
        assert [json.loads(line)["type"] for line in everything] == [
            "started", "stdout", "display", "result",
        ]  # fmt: skip
        for after in range(6):
            url = f"{path}/{results[2].execution_id}/events?after={after}"
            async with opened(broker, "GET", url, accept=NDJSON) as response:
                assert (await response.rest()).splitlines() == everything[after:]
        assert (await call(broker, "GET", f"{path}/unknown"))[0] == 404


async def test_events_are_followed(broker: BrokerProcess, session: kernelbroker.Session) -> None:
    """Events of a running cell are replayed to a second reader, who then follows to the end."""
    followed: list[dict[str, object]] = []
    async for event in session.stream(LOOP_UNTIL_INTERRUPTED, timeout=60):
        if isinstance(event, events.Stdout):
            path = f"/api/v1/sessions/{session.session_id}/executions/{event.execution_id}/events"
            async with opened(broker, "GET", path, accept=NDJSON) as response:
                await response.until_seen(b"the cell runs")
                await session.interrupt()
                followed = [json.loads(line) for line in (await response.rest()).splitlines()]
    assert [each["seq"] for each in followed] == list(range(1, event.seq + 1))
    assert followed[-1]["type"] == "result"


COUNT = "import time\nfor i in range(400):\n    print(i, flush=True)\n    time.sleep(0.005)"


async def _hear(socket: ClientConnection) -> dict[str, object]:
    message: dict[str, object] = json.loads(await socket.recv())
    return message


async def test_resume_continues_after_the_last_event(broker: BrokerProcess) -> None:
    """After a dropped connection the events continue where they stopped, while the cell runs."""
    headers = {"Authorization": f"Bearer {broker.token}"}
    url = f"ws{broker.url.removeprefix('http')}/api/v1/ws"
    heard: list[dict[str, object]] = []
    async with asyncio.timeout(DEADLINE_S):
        socket = await connect(url, additional_headers=headers)
        await socket.send('{"op":"open"}')
        session_id = json.loads(await socket.recv())["session"]["session_id"]
        await socket.send(json.dumps({"op": "execute", "code": COUNT, "execution_id": "count"}))
        for enough in (30, 60, 120, 1_000):
            while len(heard) < enough and not (heard and heard[-1]["type"] == "result"):
                heard.append(await _hear(socket))
            if heard[-1]["type"] == "result":
                break
            socket.transport.abort()  # no goodbye: the network is gone
            socket = await connect(url, additional_headers=headers)
            await socket.send(json.dumps({"op": "open", "session_id": session_id}))
            assert (await _hear(socket))["type"] == "opened"
            resume = {"op": "resume", "execution_id": "count", "after": heard[-1]["seq"]}
            await socket.send(json.dumps(resume))
        await socket.send('{"op":"close"}')
        await socket.close()
    assert [event["seq"] for event in heard] == list(range(1, len(heard) + 1))
    text = "".join(str(event["content"]) for event in heard if event["type"] == "stdout")
    assert text == "".join(f"{i}\n" for i in range(400))


async def test_the_sdk_resumes_without_gaps(session: kernelbroker.Session) -> None:
    """The SDK reconnects after a lost connection; the caller gets no gap and no duplicate."""
    text, last = "", None
    async for event in session.stream(COUNT):
        if isinstance(event, events.Stdout):
            text += event.content
            if event.seq in (20, 60, 61, 100):
                assert session._connection is not None
                assert session._connection._websocket is not None
                session._connection._websocket.transport.abort()
        last = event
    assert isinstance(last, events.Result)
    assert last.success
    assert text == "".join(f"{i}\n" for i in range(400))


async def test_a_second_connection_watches(client: kernelbroker.Broker) -> None:
    """A session has the same state on each of its connections. Who joins it closes it only if asked."""
    async with client.session(keep=True) as session:
        await session.run("shared = 42")
        async with client.session(session.session_id) as again:
            assert (await again.run("print(shared)")).stdout == "42\n"
        assert (await session.run("print(shared)")).stdout == "42\n"
        async with client.session(session.session_id, keep=False):
            pass
        with pytest.raises(kernelbroker.SessionGone):
            await session.run("1")


async def test_an_idle_session_is_closed(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """An idle session closes with the reason; a session with a running cell is not idle."""
    async with client.session(idle_timeout=0.5) as session:
        result = await session.run("import time; time.sleep(1)")
        assert result.success, result.error
        path = f"/api/v1/sessions/{session.session_id}"
        await _until_gone(broker, session.session_id)
        status, body = await call(broker, "GET", path)
        assert (status, body["error"]["code"]) == (410, "session_gone")
        assert "it was idle for 0.5 s" in body["error"]["message"]
        assert (await call(broker, "POST", f"{path}/exec", {"code": "1"}))[0] == 410
        with pytest.raises(kernelbroker.SessionGone, match=r"idle for 0\.5 s"):
            await session.run("1")


async def test_a_session_ends_with_its_lifetime(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """At the end of its lifetime a session closes, and a running cell has its result."""
    async with client.session(max_lifetime=1) as session:
        result = await session.run(LOOP_UNTIL_INTERRUPTED, timeout=60)
        assert result.error == "SessionClosed: it reached its lifetime of 1 s"
        await _until_gone(broker, session.session_id)
        with pytest.raises(kernelbroker.SessionGone, match="lifetime of 1 s"):
            await session.run("1")


async def _until_gone(broker: BrokerProcess, session_id: str) -> None:
    async def is_gone() -> bool:
        return (await call(broker, "GET", f"/api/v1/sessions/{session_id}"))[0] == 410

    await until(is_gone)


async def test_session_life_cycle_over_rest(broker: BrokerProcess) -> None:
    """A session is opened, listed, read, extended and closed over REST; then it is gone."""
    status, info = await call(
        broker, "POST", "/api/v1/sessions", {"metadata": {"for": "you"}, "env": {"A": "b"}}
    )
    assert (status, info["state"], info["isolation"]) == (201, "idle", "bubblewrap")
    path = f"/api/v1/sessions/{info['session_id']}"
    _, listed = await call(broker, "GET", "/api/v1/sessions")
    assert info["session_id"] in [session["session_id"] for session in listed["sessions"]]
    assert (await call(broker, "PATCH", path, {"idle_timeout": 99}))[1]["idle_timeout"] == 99
    answer = {"code": "import os; print(os.environ['A'])"}
    _, body = await call(broker, "POST", f"{path}/exec", answer, accept="application/json")
    assert body["stdout"] == "b\n"
    assert (await call(broker, "DELETE", path))[0] == 204
    status, body = await call(broker, "GET", path)
    assert (status, "its client closed it" in body["error"]["message"]) == (410, True)


async def test_a_single_cell_has_its_own_sandbox(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """A cell without a session has its own sandbox, which is removed afterwards."""
    body = {"code": "x = 1; print(open('/data/x', 'w').write('1'))"}
    status, answer = await call(broker, "POST", "/api/v1/exec", body, accept="application/json")
    assert (status, answer["stdout"]) == (200, "1\n")
    result = await client.run("import os; print('x' in globals(), os.listdir('/data'))")
    assert result.stdout == "False []\n"


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/v1/exec", {"code": "1", "colour": "red"}, 400),
        ("POST", "/api/v1/exec", {}, 400),
        ("POST", "/api/v1/exec", {"code": "1", "timeout": 100_000}, 400),
        ("POST", "/api/v1/exec", {"code": "x" * 100_001}, 400),
        ("POST", "/api/v1/exec", {"code": "x" * 3_000_000}, 413),
        ("GET", "/api/v1/sessions/unknown", None, 404),
        ("GET", "/api/v1/nowhere", None, 404),
        ("POST", "/api/v1/sessions", {"template": "none"}, 400),
    ],
)
async def test_refusals_are_json_with_advice(
    broker: BrokerProcess, method: str, path: str, body: object, status: int
) -> None:
    """Refusals are JSON with advice and the request id."""
    async with opened(broker, method, path, body, **{"X-Request-ID": "mine"}) as response:
        error = json.loads(await response.rest())["error"]
    assert response.status == status, error
    assert error["message"]
    assert error["request_id"] == response.headers["X-Request-ID"] == "mine"


async def test_only_health_needs_no_token(broker: BrokerProcess) -> None:
    """Without a token only the health calls answer."""
    for headers in ({"Authorization": ""}, {"Authorization": "Bearer wrong"}):
        assert (await call(broker, "GET", "/api/v1/sessions", **headers))[0] == 401
        assert (await call(broker, "POST", "/api/v1/exec", {"code": "1"}, **headers))[0] == 401
        status, health = await call(broker, "GET", "/health", **headers)
        assert (status, health["status"]) == (200, "ok")
    async with kernelbroker.connect(broker.url, "wrong") as client:
        with pytest.raises(kernelbroker.Unauthorized):
            await client.run("1")


async def test_on_disconnect_selects_continue_or_interrupt(
    broker: BrokerProcess, session: kernelbroker.Session
) -> None:
    """After a disconnect a cell continues or is interrupted, as requested."""
    path = f"/api/v1/sessions/{session.session_id}"
    for choice in ("interrupt", "continue"):
        body = {"code": LOOP_UNTIL_INTERRUPTED, "timeout": 60, "on_disconnect": choice}
        async with opened(broker, "POST", f"{path}/exec", body) as response:
            await response.until_seen(b"the cell runs")
            execution = response.headers["X-Execution-ID"]
        if choice == "continue":
            _, info = await call(broker, "GET", path)
            assert info["state"] == "busy"
            await session.interrupt()
        url = f"{path}/executions/{execution}/events"
        async with opened(broker, "GET", url, accept=NDJSON) as response:
            result = json.loads((await response.rest()).splitlines()[-1])
        assert result["error_detail"]["cause"] == "interrupted"


async def test_an_expired_workspace_is_deleted(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """A workspace that is not kept is deleted from the disk, with files of any mode."""
    async with client.session() as session:
        await session.run(
            "import os\n_ = open('/data/needle', 'w').write('x'); os.mkdir('/data/locked')\n"
            "os.symlink('/', '/data/root'); os.chmod('/data/locked', 0)"
        )
        assert len(list(broker.data_dir.glob("*/sandboxes/*/workspace/needle"))) == 1
    await until(lambda: not list(broker.data_dir.glob("*/sandboxes/*/workspace/needle")))


async def test_programs_have_no_arguments(session: kernelbroker.Session) -> None:
    """What reads its command line runs as it does without arguments."""
    code = """
import argparse, sys, unittest
parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=3)
print(sys.argv, parser.parse_args())
class Tests(unittest.TestCase):
    def test_sum(self): self.assertEqual(1 + 1, 2)
unittest.main()
"""
    result = await session.run(code)
    assert result.stdout == "[''] Namespace(size=3)\n"
    assert "Ran 1 test" in result.stderr
    assert (result.success, result.exit_code) == (True, 0)
