"""Checkpoints and forks of living processes, over the SDK, with real sandboxes."""

from __future__ import annotations

from collections.abc import Iterator

import kernelbroker
import pytest

from tests.backends.probes import CRIU, needs_criu
from tests.e2e.support import BrokerProcess, running_broker, whole_system

pytestmark = [*whole_system, needs_criu]

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
print(open("/tmp/scratch").read(), unnamed.read(), child.stdout.readline().strip())
"""
USED = f"True 2 {sum(range(2, 300_000, 3))} first second\nin tmp ghost echo\n"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One whose sessions can save their processes, with a second template whose sessions cannot."""
    settings = {
        "LOCAL__CRIU": CRIU,
        "SANDBOX__PROCESS_CHECKPOINTS": "true",
        "SANDBOX__MEMORY": "1GiB",
        "POOL__ACQUIRE_TIMEOUT": 120,
        "TEMPLATES__OTHER__PROCESS_CHECKPOINTS": "false",
        "TEMPLATES__OTHER__POOL__MIN_SIZE": 0,
    }
    with running_broker(POOL__MIN_SIZE=2, POOL__MAX_SIZE=5, **settings) as broker:
        yield broker


async def succeed(session: kernelbroker.Session, code: str) -> str:
    result = await session.run(code)
    assert result.success, result.error
    return result.stdout


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
        assert await client.checkpoints() == []
