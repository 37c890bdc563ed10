"""Contexts in real sandboxes: further kernels of one session, forked or started."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import kernelbroker.sync
import pytest
from kernelbroker import events

from tests.e2e.support import (
    BrokerProcess,
    backend_settings,
    call,
    running_broker,
    until,
    whole_system,
)
from tests.e2e.test_adoption import end_all, free_port
from tests.support.requires import lacks, requires

pytestmark = whole_system

KINDS = [
    "local-fork",
    pytest.param("local", marks=pytest.mark.long),
    pytest.param("docker", marks=[requires("docker"), pytest.mark.long]),
]


@pytest.fixture(scope="module", params=KINDS)
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    settings = backend_settings(request.param)
    with running_broker(
        POOL__MIN_SIZE=1,
        POOL__MAX_SIZE=4,
        SANDBOX__MEMORY="1GiB",
        SANDBOX__IMPORTS="[]",
        LIMITS__CONTEXTS=4,
        **settings,
    ) as broker:
        yield broker


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(broker.url, broker.token) as client:
        yield client


async def test_contexts_share_files_and_nothing_else(client: kernelbroker.Broker) -> None:
    """Variables are each context's own; files, environment and working directory are the session's."""
    async with client.session(env={"GIVEN": "yes"}) as session:
        await session.run("import os\nx = 'of the session'\nopen('note', 'w').write('shared')")
        async with await session.context() as context:
            looked = await context.run(
                "import os\nprint(open('note').read(), os.environ['GIVEN'], os.getcwd())\nx"
            )
            assert looked.stdout == "shared yes /data\n"
            assert (looked.error or "").startswith("NameError")
            await context.run("x = 'of the context'")
            assert [each.name for each in await context.variables()] == ["x"]
            await context.files.write("below/one", b"1")
            assert await session.files.read("below/one") == b"1"
            [info] = await session.contexts()
            assert (info.session_id, info.context_of, info.language) == (
                context.session_id,
                session.session_id,
                "python",
            )
        assert (await session.run("print(x)")).stdout == "of the session\n"
        assert await session.contexts() == []


async def test_cells_of_contexts_run_at_the_same_time(client: kernelbroker.Broker) -> None:
    """Two cells wait for each other, by files: this can only end if both run."""
    code = """
import os, time
open(mine, "w").close()
while not os.path.exists(other): time.sleep(0.01)
print("met")
"""
    async with client.session() as session, await session.context() as context:
        one = f"mine, other = 'a', 'b'\n{code}"
        two = f"mine, other = 'b', 'a'\n{code}"
        results = await asyncio.gather(session.run(one), context.run(two))
        assert [result.stdout for result in results] == ["met\n", "met\n"]


async def test_an_interrupt_reaches_one_context(client: kernelbroker.Broker) -> None:
    """The cell of the other context, and that of the session, run on and end by themselves."""
    wait = "import os, time\nprint('runs', flush=True)\nwhile not os.path.exists('go'): time.sleep(0.01)"
    async with (
        client.session() as session,
        await session.context() as one,
        await session.context() as two,
    ):
        running = [each.stream(f"{wait}\nprint('ended')") for each in (session, one, two)]
        for stream in running:
            while not isinstance(await anext(stream), events.Stdout):
                pass
        await one.interrupt()
        ends = []
        for index in (1, 0, 2):
            if index == 0:
                await session.files.write("go", b"")
            rest = [event async for event in running[index]]
            result = rest[-1]
            assert isinstance(result, events.Result)
            ends.append(result.success)
        assert ends == [False, True, True]
        assert (await one.run("'alive'")).success


@requires("node")
async def test_contexts_of_other_languages(client: kernelbroker.Broker) -> None:
    """A context's language is that of its cells; each has its own state, and Python can still be named."""
    async with (
        client.session() as session,
        await session.context(language="javascript") as script,
        await session.context(language="javascript") as other,
        await session.context(language="bash", cwd="/tmp") as shell,
    ):
        await script.run("var count = 41")
        assert (await script.run("console.log(count + 1)")).stdout == "42\n"
        assert (await other.run("console.log(typeof count)")).stdout == "undefined\n"
        assert (await shell.run("pwd")).stdout == "/tmp\n"
        assert (await shell.run("print(1 + 1)", language="python")).stdout == "2\n"
        failed = await shell.run("exit 3")
        assert (failed.success, failed.exit_code) == (False, 3)
        with pytest.raises(kernelbroker.BadRequest, match="no language 'r'"):
            await session.context(language="r")
        with pytest.raises(kernelbroker.BadRequest, match="No such file"):
            await session.context(cwd="/nowhere")
        assert len(await session.contexts()) == 3


async def test_on_error_of_a_session(client: kernelbroker.Broker) -> None:
    """With `keep` a failed cell's names stay, as in a notebook, also in contexts; a cell may differ."""
    async with client.session(on_error="keep") as session, await session.context() as context:
        for each in (session, context):
            assert not (await each.run("kept = 1\n1 / 0")).success
            assert (await each.run("print(kept)")).stdout == "1\n"
            assert not (await each.run("gone = 1\n1 / 0", on_error="rollback")).success
            assert not (await each.run("gone")).success


async def test_the_end_of_a_contexts_kernel(client: kernelbroker.Broker) -> None:
    """Its cell says how it ended; its processes end with it; the session and other contexts go on."""
    async with (
        client.session() as session,
        await session.context() as context,
        await session.context() as other,
    ):
        await session.run("x = 1")
        await other.run("x = 2")
        started = await context.run(
            "import os, subprocess\nchild = subprocess.Popen(['sleep', '1000'])\nprint(child.pid)"
        )
        pid = int(started.stdout)
        for count in (1, 1, 10_000):
            died = await context.run(
                f"import os\nprint('last words\\n' * {count}, end='')\nos._exit(7)"
            )
            assert died.stdout == "last words\n" * count
            assert died.error == "KernelDied: the kernel exited with status 7"
            assert died.kernel_restarted
        again = await context.run("print('child' in globals())")
        assert (again.stdout, again.kernel_restarted) == ("False\n", False)
        alive = f"import os\nprint(os.path.exists('/proc/{pid}'))"
        assert (await session.run(alive)).stdout == "False\n"
        await context.run("import os, signal")
        killed = await context.run("os.kill(os.getpid(), signal.SIGSEGV)")
        assert killed.error == "KernelDied: the kernel was killed by SIGSEGV"
        for each, value in ((session, "1\n"), (other, "2\n")):
            assert (await each.run("print(x)")).stdout == value


async def test_out_of_memory_in_a_context(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """The limit is the sandbox's. Linux ends the greediest process, so the session keeps its kernel."""
    status, health = await call(broker, "GET", "/health")
    assert status == 200
    if "watchdog" in json.dumps(health):
        lacks("control groups", "the watchdog ends the whole sandbox")
    async with client.session() as session, await session.context() as context:
        await session.run("x = 1")
        eaten = await context.run("hoard = []\nwhile True: hoard.append(b'1' * 10**7)", timeout=60)
        assert eaten.error_detail is not None
        assert eaten.error_detail.cause == "out_of_memory"
        assert (await session.run("print(x)")).stdout == "1\n"
        assert (await context.run("print('again')")).stdout == "again\n"


async def test_restarts(client: kernelbroker.Broker) -> None:
    """A context's restart costs only its variables, the session's those of all its contexts."""
    async with client.session() as session, await session.context() as context:
        await session.run("x = 1")
        await context.run("x = 2\nopen('kept', 'w').close()")
        await context.restart()
        result = await context.run("import os\nprint('x' in globals(), os.path.exists('kept'))")
        assert (result.stdout, result.kernel_restarted) == ("False True\n", True)
        assert (await session.run("print(x)")).stdout == "1\n"
        await context.run("x = 2")
        await session.restart()
        result = await context.run("print('x' in globals())")
        assert (result.stdout, result.kernel_restarted) == ("False\n", True)
        assert (await session.run("print('x' in globals())")).stdout == "False\n"


async def test_contexts_are_bounded(client: kernelbroker.Broker) -> None:
    """One more than allowed is refused; all work, and closing one makes room."""
    async with client.session() as session:
        contexts = [await session.context() for _ in range(4)]
        with pytest.raises(kernelbroker.TooManyRequests, match="4 contexts, the most"):
            await session.context()
        results = await asyncio.gather(
            *(each.run(f"print({i})") for i, each in enumerate(contexts))
        )
        assert [result.stdout for result in results] == [f"{i}\n" for i in range(4)]
        await contexts[0].close()
        async with await session.context() as context:
            assert (await context.run("1")).success


async def test_a_name_can_be_used_again(client: kernelbroker.Broker) -> None:
    """A session and a context that are opened under the id of an ended one are fresh."""
    for _ in range(2):
        async with client.session("report") as session:
            for _ in range(2):
                async with await session.context("helper") as context:
                    result = await context.run("fresh = 'x' not in globals(); x = 1; fresh")
                    assert result.text.strip() == "True"
            result = await session.run("fresh = 'y' not in globals(); y = 1; fresh")
            assert result.text.strip() == "True"


async def test_the_end_of_the_session(client: kernelbroker.Broker) -> None:
    """A context that is used after its session is gone, and says why."""
    session = client.session()
    await session.open()
    context = await session.context()
    stream = context.stream("print('runs', flush=True)\nimport time\ntime.sleep(1000)")
    while not isinstance(await anext(stream), events.Stdout):
        pass
    await session.close()
    result = [event async for event in stream][-1]
    assert isinstance(result, events.Result)
    assert result.error_detail is not None
    assert result.error_detail.cause == "interrupted"
    with pytest.raises(kernelbroker.SessionGone, match="its session was closed"):
        await context.run("1")


async def test_packages_and_tables_of_a_context(client: kernelbroker.Broker) -> None:
    """What needs the kernel itself works as in a session: variables by name, plots, input."""
    async with client.session() as session, await session.context(context_id="mine") as context:
        await context.run("import pandas\ndf = pandas.DataFrame({'a': [1, 2]})")
        assert (await context.table("df"))["a"].tolist() == [1, 2]
        asked = await context.run("print(input('name? '))", on_input=lambda _: "somebody")
        assert asked.stdout == "somebody\n"
        with pytest.raises(kernelbroker.NotFound):
            await session.table("df")
        again = await session.context("mine", keep=True)
        assert (await again.run("print(len(df))")).stdout == "2\n"
        await again.close()


async def test_contexts_over_rest(broker: BrokerProcess) -> None:
    """Each path of the API, and the errors: another session's context, garbage, a closed one."""
    api = "/api/v1/sessions"
    for name in ("rest", "rest-other"):
        assert (await call(broker, "POST", api, {"session_id": name}))[0] == 201
    path = f"{api}/rest/contexts"
    status, made = await call(broker, "POST", path, {"context_id": "c1", "language": "bash"})
    assert (status, made["session_id"], made["context_of"]) == (201, "c1", "rest")
    assert (made["language"], made["state"]) == ("shell", "idle")
    assert (await call(broker, "POST", path, {"context_id": "c1"}))[0] == 200
    assert (await call(broker, "GET", f"{path}/c1"))[1]["context_of"] == "rest"
    listed = (await call(broker, "GET", path))[1]["sessions"]
    assert [each["session_id"] for each in listed] == ["c1"]
    assert (await call(broker, "GET", f"{api}/rest"))[1]["contexts"] == 1
    everything = (await call(broker, "GET", api))[1]["sessions"]
    assert not [each for each in everything if each["session_id"] == "c1"]
    status, ran = await call(
        broker, "POST", f"{path}/c1/exec", {"code": "echo $((6 * 7))"}, accept="application/json"
    )
    assert (status, ran["stdout"]) == (200, "42\n")
    status, submitted = await call(broker, "POST", f"{path}/c1/executions", {"code": "true"})
    assert status == 202
    history = (await call(broker, "GET", f"{path}/c1/executions"))[1]["executions"]
    assert history[-1]["execution_id"] == submitted["execution_id"]
    assert (await call(broker, "POST", f"{path}/c1/interrupt"))[0] == 202
    status, restarted = await call(broker, "POST", f"{path}/c1/restart")
    assert (status, restarted["restarts"]) == (200, 1)
    other = f"{api}/rest-other/contexts/c1"
    for method, where in (("GET", other), ("DELETE", other), ("POST", f"{other}/restart")):
        assert (await call(broker, method, where))[0] == 404
    assert (await call(broker, "POST", f"{other}/exec", {"code": "true"}))[0] == 404
    for body in ({"language": "cobol"}, {"cwd": "/no/where"}, {"env": {}}, {"context_id": "a/b"}):
        status, refused = await call(broker, "POST", path, body)
        assert (status, refused["error"]["code"]) == (400, "bad_request"), body
    assert (await call(broker, "POST", f"{api}/nobody/contexts", {}))[0] == 404
    assert (await call(broker, "DELETE", f"{path}/c1"))[0] == 204
    assert (await call(broker, "GET", f"{path}/c1"))[0] == 410
    for name in ("rest", "rest-other"):
        assert (await call(broker, "DELETE", f"{api}/{name}"))[0] == 204
    assert (await call(broker, "POST", path, {}))[0] == 410


def test_contexts_without_await(broker: BrokerProcess) -> None:
    """The synchronous client has the same calls."""
    with kernelbroker.sync.connect(broker.url, broker.token) as client, client.session() as session:
        with session.context(language="shell", cwd="/tmp", metadata={"a": 1}) as context:
            assert context.run("pwd").stdout == "/tmp\n"
            [info] = session.contexts()
            assert (info.metadata, info.cwd) == ({"a": 1}, "/tmp")
        assert session.contexts() == []


@pytest.mark.parametrize("kind", KINDS)
async def test_contexts_outlive_a_killed_broker(kind: str) -> None:
    """Their variables and running cells go on in the next broker, with those of their session."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(
            Path(directory),
            TOKEN="the token of this test",
            PORT=free_port(),
            SANDBOX__IMPORTS="[]",
            **backend_settings(kind),
        )
        try:
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                session = client.session("s")
                await session.run("x = 'session'")
                idle, busy = await session.context("idle"), await session.context("busy")
                await idle.run("x = 'idle'")
                code = "import os, time\nprint('runs', flush=True)\n"
                code += (
                    "while not os.path.exists('go'): time.sleep(0.05)\nx = 'busy'\nprint('ended')"
                )
                stream = busy.stream(code)
                while not isinstance(await anext(stream), events.Stdout):
                    pass
                broker.kill()
                broker.start()
                (_,) = [each for each in await client.sessions() if each.session_id == "s"]
                await session.files.write("go", b"")
                rest = [event async for event in stream]
                assert [each.content for each in rest if isinstance(each, events.Stdout)] == [
                    "ended\n"
                ]
                assert isinstance(rest[-1], events.Result)
                assert rest[-1].success
                for each, value in ((session, "session"), (idle, "idle"), (busy, "busy")):
                    result = await each.run("print(x)")
                    assert (result.stdout, result.kernel_restarted) == (f"{value}\n", False)
                await session.close()
            broker.stop_in_order()
        finally:
            broker.kill()
            end_all(broker, kind)


async def test_a_gateway_that_lost_its_template_starts_kernels() -> None:
    """User code may end the process that forks kernels: its contexts end, and later ones are started."""
    settings = backend_settings("local-fork")
    with running_broker(POOL__MIN_SIZE=1, SANDBOX__IMPORTS="[]", **settings) as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session() as session,
            await session.context() as context,
        ):
            parent = int((await context.run("import os\nprint(os.getppid())")).stdout)
            own = int((await session.run("import os\nprint(os.getppid())")).stdout)
            assert parent != own, "the context was not forked"
            await session.run(f"os.kill({parent}, 9)")

            async def started() -> bool:
                result = await context.run("import os\nprint(os.getppid())")
                assert result.stdout == f"{own}\n", (own, result.stdout, result.error)
                return True

            await until(started)
            assert not (await session.run("1")).kernel_restarted
