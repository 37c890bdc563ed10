"""Checkpoints and forks of living processes, over the SDK, with real sandboxes."""

from __future__ import annotations

from collections.abc import Iterator

import kernelbroker
import pytest
from kernelbroker import events

from tests.e2e.support import (
    LOOP_UNTIL_INTERRUPTED,
    BrokerProcess,
    call,
    running_broker,
    until,
    whole_system,
)
from tests.support.documentation import fragment, run_fragment
from tests.support.requires import CRIU, requires

pytestmark = [*whole_system, requires("root", "criu")]

SETUP = """
import os, subprocess, threading, time
import numpy as np, pandas as pd

def count():
    for i in range(100):
        yield i

numbers = count()
next(numbers), next(numbers)
ticks = [0]

def tick():
    while True:
        ticks[0] += 1
        time.sleep(0.01)

threading.Thread(target=tick, daemon=True).start()
df = pd.DataFrame(np.arange(300_000).reshape(-1, 3), columns=list("abc"))
shared = open("/data/shared/numbers")
notes = open("notes.txt", "w")
notes.write("first "); notes.flush()
open("/tmp/scratch", "w").write("in tmp")
unnamed = open("/tmp/unnamed", "w+"); os.unlink("/tmp/unnamed"); unnamed.write("ghost"); unnamed.flush()
child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
pid = os.getpid()
"""
USE = """
before = ticks[0]
while ticks[0] == before:
    time.sleep(0.01)
notes.write("second"); notes.flush()
unnamed.seek(0)
child.stdin.write("echo\\n"); child.stdin.flush()
print(os.getpid() == pid, next(numbers), int(df.c.sum()), open("notes.txt").read())
print(open("/tmp/scratch").read(), unnamed.read(), child.stdout.readline().strip(), shared.read())
"""
LOOK = """
import os, subprocess
find = ["find", "/", "-xdev", "-name", "*.img", "-o", "-name", "criu*"]
found = subprocess.run(find, capture_output=True, text=True).stdout.split()
print(os.path.exists("{images}"), found, os.access("/run/criu.kdat", os.W_OK))
"""
USED = f"True 2 {sum(range(2, 300_000, 3))} first second\nin tmp ghost echo of all\n"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """One whose sessions can save their processes, with a second template whose sessions cannot."""
    shared = tmp_path_factory.mktemp("shared")
    shared.chmod(0o755)
    (shared / "numbers").write_text("of all")
    settings = {
        "SANDBOX__SHARED_DATA": shared,
        "LOCAL__CRIU": CRIU,
        "SANDBOX__PROCESS_CHECKPOINTS": "true",
        "SANDBOX__MEMORY": "1GiB",
        "POOL__ACQUIRE_TIMEOUT": 120,
        "CHECKPOINTS__SIZE": "300MiB",
        "TEMPLATES__OTHER__PROCESS_CHECKPOINTS": "false",
        "TEMPLATES__OTHER__POOL__MIN_SIZE": 0,
    }
    with running_broker(POOL__MIN_SIZE=2, POOL__MAX_SIZE=5, **settings) as broker:
        yield broker


async def succeed(session: kernelbroker.Session, code: str) -> str:
    result = await session.run(code)
    assert result.success, result.error
    return result.stdout


async def test_changed_files_of_a_saved_workspace(broker: BrokerProcess) -> None:
    """Processes with many files can be saved, and where they go on, only what changes there is listed."""
    many = "for number in range(1000): open(f'{number}.txt', 'w').close()"
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session() as session,
    ):
        await succeed(session, many)
        assert [file.path for file in (await session.run("open('17.txt', 'w').close()")).files] == [
            "17.txt"
        ]
        async with await session.fork(mode="process") as fork:
            assert (await fork.run("1")).files == []
            assert [
                file.path for file in (await fork.run("open('18.txt', 'w').close()")).files
            ] == ["18.txt"]


async def test_the_page_s_program(client: kernelbroker.Broker) -> None:
    """The program in docs/checkpoints.md goes on with a generator, in a new session and in a fork."""
    async with client.session() as session:
        await succeed(session, "generator = (n for n in range(3))")
        text = fragment("checkpoints.md", 'mode="process"').replace(', template="living"', "")
        names = {"broker": client, "session": session}
        await run_fragment(text, names)
        assert names["saved"].complete  # type: ignore[attr-defined]
    await client.delete_checkpoint("half-way")


async def test_processes_go_on_from_their_checkpoint(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """Generators, threads, open files and child processes go on: in the session itself, and in two others
    that are opened with the checkpoint, also after the broker was killed."""
    async with client.session() as session:
        await succeed(session, SETUP)
        saved = await session.checkpoint("living", mode="process")
        assert (saved.mode, saved.complete, saved.missing) == ("process", True, [])
        assert saved.size > 2_400_000
        assert await succeed(session, USE) == USED
        assert session.info is not None and session.info.restarts == 0
    broker.kill()
    broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as again:
        async with (
            again.session(from_checkpoint="living") as one,
            again.session(from_checkpoint="living", env={"WHO": "two"}) as two,
        ):
            assert await succeed(one, USE) == USED
            assert await succeed(two, USE) == USED
            assert await succeed(two, "print(os.environ['WHO'])") == "two\n"
            assert one.info is not None and one.info.not_restored == []
        with pytest.raises(kernelbroker.Conflict, match="process_checkpoints = true"):
            await again.session(from_checkpoint="living", template="other").open()
        await again.delete_checkpoint("living")


async def test_a_fork_has_the_processes(client: kernelbroker.Broker) -> None:
    """A fork goes its own way with the generators and files of its session, by default."""
    async with client.session(env={"KEY": "k"}) as session:
        await succeed(session, SETUP)
        async with await session.fork() as fork, await session.fork(mode="values") as copy:
            assert await succeed(fork, USE) == USED
            assert await succeed(session, USE) == USED
            assert await succeed(fork, "print(next(numbers), os.environ['KEY'])") == "3 k\n"
            assert not (await copy.run("numbers")).success
        assert [each for each in await client.checkpoints() if each.name != "living"] == []


async def test_a_session_sleeps_with_its_processes(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """A session that sleeps needs no sandbox, and goes on as it was: also if its broker was killed while it
    slept, or while it was awake."""
    sleepy = {"session_id": "sleepy", "on_expiry": "sleep", "idle_timeout": 1.0}

    async def is_asleep(by: kernelbroker.Broker) -> bool:
        (info,) = await by.sessions()
        assert info.kept_awake_by == []
        return info.state == "asleep"

    assert (await call(broker, "POST", "/api/v1/sessions", sleepy))[0] == 201
    async with await client.attach("sleepy", keep=True) as session:
        await succeed(session, SETUP)
        await until(lambda: is_asleep(client))
        result = await session.run(USE)
        assert (result.stdout, result.kernel_restarted) == (USED, False), result.error
        await until(lambda: is_asleep(client))
    broker.kill()
    broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as again:
        session = await again.attach("sleepy", keep=True)
        await session.update(idle_timeout=600)
        assert await succeed(session, "print(next(numbers))") == "3\n"
        broker.kill()
        broker.start()
    async with kernelbroker.connect(broker.url, broker.token) as last:
        session = await last.attach("sleepy", keep=False)
        assert await succeed(session, "print(next(numbers))") == "4\n"
        async with await session.fork(mode="process") as fork:
            assert await succeed(fork, "print(next(numbers))") == "5\n"
        await session.close()


async def test_what_cannot_be_saved_is_refused(client: kernelbroker.Broker) -> None:
    """The reason is told, nothing is stored, and the session goes on."""

    async def refused(session: kernelbroker.Session, match: str) -> None:
        with pytest.raises(kernelbroker.Conflict, match=match) as caught:
            await session.checkpoint("never", mode="process")
        assert 'mode="values"' in str(caught.value)

    async with client.session() as session:
        await succeed(session, "kept = (n for n in range(9)); next(kept)")
        async for event in session.stream(LOOP_UNTIL_INTERRUPTED, timeout=60):
            if isinstance(event, events.Stdout):
                await refused(session, "is in use")
                await session.interrupt()
        daemon = (
            "import os, time\n"
            "if not os.fork():\n"
            "    if not os.fork(): os.setsid(); os.execvp('sleep', ['sleep', '600'])\n"
            "    os._exit(0)\n"
            "os.wait()"
        )
        assert (await session.run(daemon)).success
        await refused(session, "left their parents")
        await succeed(session, "import subprocess; subprocess.run(['pkill', 'sleep'])")
        async with await session.context():
            await refused(session, "contexts")
        await succeed(session, "big = bytearray(os.urandom(1)) * 400_000_000")
        with pytest.raises(kernelbroker.TooLarge):
            await session.checkpoint("never", mode="process")
        await succeed(session, "del big")
        assert await succeed(session, "print(next(kept))") == "1\n"
        assert session.info is not None and session.info.restarts == 0
    async with client.session(secrets={"PASS": "never-on-the-disk"}) as session:
        await refused(session, "secrets")
    async with client.session(template="other") as session:
        await refused(session, "process_checkpoints = true")
        async with await session.fork():  # of its values
            pass
    assert await client.checkpoints() == []


async def test_user_code_sees_no_images(client: kernelbroker.Broker, broker: BrokerProcess) -> None:
    """Images are root's, in directories that no sandbox sees; damaged ones are refused."""
    images = broker.data_dir / ".checkpoints"
    before = {*images.glob("*/*.data")}
    async with client.session() as session:
        await session.checkpoint("guarded", mode="process")
        (stored,) = {*images.glob("*/*.data")} - before
        for path in (stored, *stored.parents):
            if path != stored and path.is_relative_to(images):
                assert (path.stat().st_uid, path.stat().st_mode & 0o077) == (0, 0)
        assert (
            await succeed(session, LOOK.format(images=images)) == "False ['/run/criu.kdat'] False\n"
        )
    whole = stored.read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", bytes(len(whole))):
        stored.write_bytes(damaged)
        with pytest.raises(kernelbroker.RequestError, match="could not be restored"):
            await client.session(from_checkpoint="guarded").open()
    await client.delete_checkpoint("guarded")
    assert {*images.glob("*/*.data")} == before


async def test_rest(broker: BrokerProcess) -> None:
    """The routes have the mode; another one is a bad request; the audit log has the checkpoint."""
    status, _ = await call(broker, "POST", "/api/v1/sessions", {"session_id": "rest"})
    assert status == 201
    path = "/api/v1/sessions/rest"
    body = {"name": "by-rest", "mode": "process"}
    status, saved = await call(broker, "POST", f"{path}/checkpoint", body)
    assert (status, saved["mode"]) == (201, "process")
    status, _ = await call(broker, "POST", f"{path}/checkpoint", body | {"mode": "magic"})
    assert status == 400
    status, fork = await call(broker, "POST", f"{path}/fork", {"mode": "process"})
    assert status == 201
    _, health = await call(broker, "GET", "/health")
    assert health["backend"]["process_checkpoints"] == "criu"
    for name in ("rest", fork["session_id"]):
        assert (await call(broker, "DELETE", f"/api/v1/sessions/{name}"))[0] == 204
    assert (await call(broker, "DELETE", "/api/v1/checkpoints/by-rest"))[0] == 204
