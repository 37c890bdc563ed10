"""A broker that is killed and started again: its sandboxes live, and their sessions go on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import events
from kernelbroker.protocol.events import Event
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.container_options import LABEL_DATA
from kernelbroker_server.sessions.superseded import SUPERSEDED_STATUS

from tests.backends.probes import ON_GVISOR, containers_of
from tests.e2e.support import (
    BrokerProcess,
    backend_settings,
    call,
    free_port,
    until,
    whole_system,
)
from tests.support.extent import WHOLE
from tests.support.requires import engine, requires

pytestmark = whole_system

TOKEN = "the token of this test"


ON_DOCKER = pytest.param("docker", marks=requires("docker"))
KINDS = {"local": "local", "local-fork": "local-fork", "docker": ON_DOCKER, "gvisor": ON_GVISOR}


def on(*kinds: str, name: str = "broker") -> pytest.MarkDecorator:
    """The kinds of sandboxes for which a test can differ; the whole tests take all."""
    chosen = [KINDS[kind] for kind in (KINDS if WHOLE else kinds)]
    return pytest.mark.parametrize(name, chosen, indirect=name == "broker")


def end_all(broker: BrokerProcess, kind: str = "local") -> None:
    """End what a failed test has left."""
    for pid in procfs.started_in(broker.data_dir):
        os.kill(pid, 9)
    if not kind.startswith("local"):
        with engine() as api:
            for name in containers_of(broker.data_dir):
                api.remove_container(name, force=True)


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(
            Path(directory),
            TOKEN=TOKEN,
            PORT=free_port(),
            POOL__MIN_SIZE=2,
            POOL__MAX_SIZE=4,
            **backend_settings(request.param),
        )
        try:
            with broker.running():
                yield broker
        finally:
            end_all(broker, request.param)


async def warm_sandboxes(broker: BrokerProcess, number: int) -> list[str]:
    """Wait until so many are free. Returns the directories of all sandboxes."""

    async def enough() -> bool:
        status = (await call(broker, "GET", "/api/v1/pool/status"))[1]
        return bool(status["idle_containers"] >= number)

    await until(enough)
    return broker.sandboxes()["directories"]


@on("local-fork", "docker")
async def test_a_session_and_the_pool_outlive_a_killed_broker(broker: BrokerProcess) -> None:
    """After kill -9 and a start, variables, files and history are there, and no sandbox is new."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        session = client.session("mine", workspace="files", metadata={"a": 1})
        await session.open()
        first = await session.run(
            "import os\nx = 6 * 7\nopen('note.txt', 'w').write('kept')\nprint(os.getpid(), 'began')"
        )
        assert first.success
        before = await warm_sandboxes(broker, 2)
        changes = {"metadata": {"b": 2}, "idle_timeout": 1234.0}
        assert (await call(broker, "PATCH", "/api/v1/sessions/mine", changes))[0] == 200
        broker.kill()
    broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as client:
        assert await warm_sandboxes(broker, 2) == before
        (info,) = await client.sessions()
        assert (info.session_id, info.metadata, info.idle_timeout) == ("mine", {"b": 2}, 1234.0)
        session = client.session("mine")
        result = await session.run("print(x, open('note.txt').read())")
        assert result.stdout == "42 kept\n"
        again = await client.result("mine", first.execution_id)
        assert again.stdout == first.stdout
        assert len(await client.executions("mine")) == 2
        # A warm sandbox that was adopted can be leased, and is nobody's.
        other = client.session("other")
        fresh = await other.run("print('x' in dir())")
        assert fresh.stdout == "False\n"
        restarted = client.session("mine")
        await restarted.restart()
        assert (await restarted.run("print(open('note.txt').read())")).stdout == "kept\n"


@on("local-fork", name="kind")
async def test_a_stop_leaves_sessions_to_the_next_broker(kind: str) -> None:
    """SIGTERM with `shutdown = "adopt"` lets cells end, and clients go on in the next broker."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(
            Path(directory),
            TOKEN=TOKEN,
            PORT=free_port(),
            SHUTDOWN="adopt",
            **backend_settings(kind),
        )
        try:
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                idle, busy = client.session("idle"), client.session("busy")
                secret = client.session("secret", secrets={"KEY": "hidden value"})
                assert (await idle.run("x = 6 * 7\nopen('note.txt', 'w').write('kept')")).success
                assert (await secret.run("1")).success
                code = "import os, time\nprint('runs')\nwhile not os.path.exists('go'): time.sleep(0.1)"
                stream = busy.stream(f"{code}\ny = 'ended'")
                while not isinstance(await anext(stream), events.Stdout):
                    pass
                before = set(await warm_sandboxes(broker, 1))
                os.kill(broker.pid, signal.SIGTERM)
                await until(lambda: "stopping" in broker.log.read_text())
                with pytest.raises(kernelbroker.SessionGone, match="shutting down"):
                    await secret.run("1")
                for workspace in broker.data_dir.glob("*/sandboxes/*/workspace"):
                    (workspace / "go").touch()
                last = [event async for event in stream][-1]
                assert isinstance(last, events.Result)
                assert last.success
                assert await asyncio.to_thread(broker.wait) == 0
                broker.start()
                assert set(broker.sandboxes()["directories"]) <= before
                assert (await idle.run("print(x, open('note.txt').read())")).stdout == "42 kept\n"
                assert (await busy.run("print(y)")).stdout == "ended\n"
                assert len(await client.executions("busy")) == 2
            broker_ids = broker.broker_ids()
            assert await asyncio.to_thread(broker.stop, signal.SIGINT) == 0
            assert broker.remains(broker_ids) == []
            assert broker.complaints() == [], broker.log.read_text(errors="replace")
        finally:
            broker.kill()
            end_all(broker, kind)


async def test_a_broker_takes_over_from_a_running_one() -> None:
    """No request is refused meanwhile, and sessions go on. If the new broker fails, the old one goes on."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        settings: dict[str, object] = {"SHUTDOWN": "adopt", "SANDBOX__ORPHAN_GRACE": 60}
        old, new = (BrokerProcess(Path(directory), TOKEN=TOKEN, **settings) for _ in range(2))
        wrong = BrokerProcess(
            Path(directory), TOKEN=TOKEN, **settings, LOCAL__KERNEL_PYTHON="/no/such/python"
        )
        wrong.runtime_file = wrong.runtime_file.with_name(
            "wrong.json"
        )  # the old one writes its own again
        try:
            with pytest.raises(AssertionError, match="Start without --take-over"):
                new.start("--take-over")
            old.start()
            async with kernelbroker.connect(old.url, old.token) as client:
                session = client.session("mine")
                assert (await session.run("x = 6 * 7")).success
                with pytest.raises(AssertionError, match="/no/such/python"):
                    await asyncio.to_thread(wrong.start, "--take-over")
                await until(lambda: "this one goes on" in old.log.read_text())
                assert (await session.run("print(x)")).stdout == "42\n"
                starting = asyncio.create_task(asyncio.to_thread(new.start, "--take-over"))
                while not starting.done():
                    assert (await call(old, "GET", "/api/v1/pool/status"))[0] == 200
                await starting
                assert new.url == old.url
                assert await asyncio.to_thread(old.wait) == 0
                assert (await session.run("print(x)")).stdout == "42\n"
                # SIGHUP starts a successor by itself.
                assert await asyncio.to_thread(new.stop, signal.SIGHUP) == 0
                last = json.loads(new.runtime_file.read_text())
                assert last["url"] == old.url
                assert (await session.run("print(x)")).stdout == "42\n"
            broker_ids = new.broker_ids()
            os.kill(last["pid"], signal.SIGINT)
            await until(lambda: not new.remains(broker_ids))
            (complaint,) = new.complaints()
            assert "this one goes on" in complaint
        finally:
            for each in (old, new, wrong):
                each.kill()
            for pid in procfs.started_in(old.data_dir):
                os.kill(pid, signal.SIGKILL)


@on("local-fork")
async def test_two_brokers_never_own_one_session(broker: BrokerProcess) -> None:
    """A broker whose state another one has taken ends at once, and leaves its sandboxes to that one."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        session = client.session("mine")
        assert (await session.run("x = 6 * 7")).success
        epoch = broker.data_dir / ".state" / "epoch"
        later = int.from_bytes(epoch.read_bytes(), "big") + 1
        with epoch.open("r+b") as file:  # as a later broker does
            file.write(later.to_bytes(8, "big"))
        assert await asyncio.to_thread(broker.wait) == SUPERSEDED_STATUS
    (complaint,) = broker.complaints()
    assert "another broker has taken over" in complaint
    broker.log.unlink()
    broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as client:
        assert (await client.session("mine").run("print(x)")).stdout == "42\n"


LINES = """
import time
for i in range(60):
    print('line', i, flush=True)
    time.sleep(0.05)
y = 'ended'
"""


async def until_line(stream: AsyncIterator[Event], lines: int) -> str:
    """Read so many lines. Returns the text."""
    text = ""
    while text.count("\n") < lines:
        event = await anext(stream)
        text += event.content if isinstance(event, events.Stdout) else ""
    return text


async def rest(stream: AsyncIterator[Event]) -> tuple[str, events.Result]:
    """Read to the end. Returns the text and the result."""
    text = ""
    async for event in stream:
        text += event.content if isinstance(event, events.Stdout) else ""
    assert isinstance(event, events.Result)
    return text, event


@on("local-fork")
async def test_cells_go_on_after_a_kill(broker: BrokerProcess) -> None:
    """Clients see a pause: each line once and in order. What waited runs then, and nothing runs twice."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        session = client.session("mine")
        assert (await session.run("x = 6 * 7\nruns = []")).success
        stream = session.stream(f"runs.append(1)\n{LINES}")
        text = await until_line(stream, 5)
        waiting = asyncio.create_task(session.run("print(x, y, runs)"))
        await until(lambda: queued(broker, "mine"))
        alone = await client.submit(
            "import time\nprint('begun', flush=True)\ntime.sleep(5)\nprint('alone')"
        )
        async with aclosing(alone.events()) as seen:
            await until_line(seen, 1)
        broker.kill()
        await asyncio.to_thread(broker.start)
        more, result = await rest(stream)
        assert text + more == "".join(f"line {i}\n" for i in range(60))
        assert result.success
        assert not result.kernel_restarted
        assert (await waiting).stdout == "42 ended [1]\n"
        assert (await alone.result()).stdout == "begun\nalone\n"
        assert [each.session_id for each in await client.sessions()] == ["mine"]
        assert len(await client.executions("mine")) == 3


async def queued(broker: BrokerProcess, session_id: str) -> bool:
    return bool((await call(broker, "GET", f"/api/v1/sessions/{session_id}"))[1]["queued"])


@on("local-fork")
async def test_a_cell_that_goes_on_can_be_used(broker: BrokerProcess) -> None:
    """It can be interrupted, it gets answers to `input()`, and its timeout counts from its beginning."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        endless, asking, slow = (client.session(name) for name in ("endless", "asking", "slow"))
        endless_stream = endless.stream("print('runs')\nwhile True: pass", timeout=300)
        slow_stream = slow.stream("print('runs')\nwhile True: pass", timeout=8)
        asked, answer = asyncio.Event(), asyncio.Event()

        async def on_input(_prompt: str) -> str:
            asked.set()
            await answer.wait()
            return "Ada"

        answered = asyncio.create_task(
            asking.run("print('I am', input('who? '))", on_input=on_input, timeout=300)
        )
        await until_line(endless_stream, 1)
        await until_line(slow_stream, 1)
        began = time.monotonic()
        await asked.wait()
        broker.kill()
        await asyncio.to_thread(broker.start)
        answer.set()
        assert (await answered).stdout == "I am Ada\n"
        await endless.interrupt()
        _, result = await rest(endless_stream)
        assert result.error_detail is not None
        assert result.error_detail.cause == "interrupted"
        _, result = await rest(slow_stream)
        assert result.error_detail is not None
        assert result.error_detail.cause == "timeout"
        assert time.monotonic() - began < 120  # a busy machine starts brokers slowly
        assert (await slow.run("print(1)")).stdout == "1\n"


@on("local-fork")
async def test_a_kernel_waits_for_the_next_broker(broker: BrokerProcess) -> None:
    """What nobody reads is held back, not kept in memory. All of it arrives, within the output's limit."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        session = client.session("mine")
        code = "for i in range(400_000):\n    print('line', i, 'x' * 100)"  # 45 MB
        code += "\n    if i == 50_000: open('under way', 'w').close()"
        cell = f"print('begins')\n{code}\nprint('ends')"
        stream = session.stream(cell, timeout=200)  # a slow machine is no fault
        begun = await until_line(stream, 1)
        broker.kill()
        await until(lambda: [*broker.data_dir.glob("*/sandboxes/*/workspace/under way")])
        await asyncio.to_thread(broker.start)
        more, result = await rest(stream)
        text = begun + more
        assert result.success
        assert result.truncated is not None
        numbers = [int(line.split()[1]) for line in text.splitlines()[1:-1]]
        assert numbers == list(range(len(numbers)))
        whole = sum(len(f"line {i} {'x' * 100}\n") for i in range(400_000)) + len("begins\nends\n")
        assert len(text) + result.truncated.output_bytes == whole
        peak = await session.run(
            "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        assert int(peak.stdout) < 250_000, "kibibytes"


@on("docker")
async def test_a_kernel_that_ends_without_a_broker(broker: BrokerProcess) -> None:
    """Its last lines arrive, and the result says that it has died."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        session = client.session("mine")
        assert (await session.run("x = 1")).success
        stream = session.stream(
            "import os, time\nprint('begins')\nwhile not os.path.exists('go'): time.sleep(0.02)\n"
            "print('ends')\nopen('gone', 'w').close()\nos._exit(3)"
        )
        text = await until_line(stream, 1)
        broker.kill()
        for workspace in broker.data_dir.glob("*/sandboxes/*/workspace"):
            (workspace / "go").touch()
        await until(lambda: [*broker.data_dir.glob("*/sandboxes/*/workspace/gone")])
        await asyncio.to_thread(broker.start)
        more, result = await rest(stream)
        assert text + more == "begins\nends\n"
        assert result.error_detail is not None
        assert result.error_detail.cause in ("kernel_died", "sandbox_lost")
        assert result.kernel_restarted
        assert (await session.run("print('x' in dir())")).stdout == "False\n"


@on("local-fork")
async def test_a_kernel_that_ends_about_when_its_broker_does(broker: BrokerProcess) -> None:
    """Each of its lines arrives once, whichever of the two ends first."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        for number, seconds in enumerate((0.0, 0.01, 0.02, 0.05)):
            cell = await client.submit(
                f"import os, time\nopen('waits-{number}', 'w').close()\n"
                "while not os.path.exists('go'): time.sleep(0.001)\n"
                "for i in range(300): print('line', i)\nos._exit(3)"
            )
            pattern = f"*/sandboxes/*/workspace/waits-{number}"
            await until(lambda: [*broker.data_dir.glob(pattern)])  # noqa: B023
            (waits,) = broker.data_dir.glob(pattern)
            waits.with_name("go").touch()
            await asyncio.sleep(seconds)
            broker.kill()
            await asyncio.to_thread(broker.start)
            result = await cell.result()
            assert result.stdout == "".join(f"line {i}\n" for i in range(300)), seconds
            assert result.error_detail is not None
            # The broker may be killed after it has stored the lines, and before the end.
            assert result.error_detail.cause in ("kernel_died", "sandbox_lost")


@on("local-fork")
async def test_what_cannot_go_on_says_so(broker: BrokerProcess) -> None:
    """A session with secrets, also of a cell, ends with a reason; its files are kept."""
    async with kernelbroker.connect(broker.url, broker.token, timeout=5) as client:
        busy = client.session("busy", workspace="of-busy")
        await busy.open()
        await busy.run("open('note.txt', 'w').write('kept')")
        code = "print('it runs', flush=True)\nimport time\ntime.sleep(600)"
        stream = busy.stream(code, secrets={"KEY": "hidden value"})
        while not isinstance(await anext(stream), events.Stdout):
            pass
        secret = client.session("secret", secrets={"KEY": "hidden value"})
        await secret.open()
        broker.kill()
        await stream.aclose()
    broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as client:
        assert await client.sessions() == []
        for session_id in ("busy", "secret"):
            status, answer = await call(broker, "GET", f"/api/v1/sessions/{session_id}")
            assert status == 410
            assert "the broker ended" in str(answer)
        (_, running) = await client.executions("busy")
        lost = await client.result("busy", running.execution_id)
        assert lost.error_detail is not None
        assert lost.error_detail.cause == "sandbox_lost"
        kept = await client.session("next", workspace="of-busy").run(
            "print(open('note.txt').read())"
        )
        assert kept.stdout == "kept\n"


def running_in(broker: BrokerProcess, kind: str) -> list[object]:
    """The processes of the broker's jails, or its containers that run."""
    if kind == "local":
        return [*procfs.started_in(broker.data_dir)]
    with engine() as api:
        label = f"{LABEL_DATA}={broker.data_dir}"
        return [each["Names"] for each in api.containers(filters={"label": label})]


@pytest.mark.parametrize("kind", [pytest.param("local", marks=pytest.mark.long), ON_DOCKER])
async def test_sandboxes_end_by_themselves_when_nobody_adopts_them(kind: str) -> None:
    """After the grace none runs. The next broker removes the rest, and keeps the files."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(
            Path(directory), TOKEN=TOKEN, SANDBOX__ORPHAN_GRACE=3, **backend_settings(kind)
        )
        with broker.running():
            async with kernelbroker.connect(broker.url, broker.token) as client:
                session = client.session("mine", workspace="files")
                assert (await session.run("open('note.txt', 'w').write('kept')")).success
                broker.kill()
            assert running_in(broker, kind) != []
            await until(lambda: running_in(broker, kind) == [])
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                assert (await call(broker, "GET", "/api/v1/sessions/mine"))[0] == 410
                kept = await client.session("next", workspace="files").run(
                    "print(open('note.txt').read())"
                )
                assert kept.stdout == "kept\n"


async def test_another_broker_leaves_orphans_alone() -> None:
    """A broker with a state of its own, on the same data_dir, does not end sandboxes within their grace."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        states = [Path(directory) / name for name in ("one", "two")]
        one, two = (
            BrokerProcess(Path(directory), TOKEN=TOKEN, SANDBOX__ORPHAN_GRACE=60, STATE_DIR=state)
            for state in states
        )
        try:
            one.start()
            async with kernelbroker.connect(one.url, one.token) as client:
                session = client.session("mine")
                assert (await session.run("x = 6 * 7")).success
                one.kill()
            two.start()
            async with kernelbroker.connect(two.url, two.token) as client:
                assert (await client.session("mine").run("print('x' in dir())")).stdout == "False\n"
            one.start()
            async with kernelbroker.connect(one.url, one.token) as client:
                assert (await client.session("mine").run("print(x)")).stdout == "42\n"
            assert await asyncio.to_thread(one.stop) == 0
            assert await asyncio.to_thread(two.stop) == 0
            assert one.complaints() == []
            assert one.remains([]) == []
        finally:
            for each in (one, two):
                each.kill()
            for pid in procfs.started_in(one.data_dir):
                os.kill(pid, 9)
