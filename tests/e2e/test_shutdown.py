"""The end of a broker, regular or by a crash: its sandboxes end with it, and nothing remains."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import events, websocket
from kernelbroker_server.backends import procfs

from tests.e2e.support import (
    LOOP_UNTIL_INTERRUPTED,
    BrokerProcess,
    call,
    cgroups,
    until,
    whole_system,
)

pytestmark = whole_system


WITH_MODULES = {"SANDBOX__IMPORTS": '["pandas", "matplotlib.pyplot"]', "DRAIN_TIMEOUT": "1"}
"""The modules that are loaded by default."""


@pytest.fixture
def broker(request: pytest.FixtureRequest) -> Iterator[BrokerProcess]:
    """One of the test's own, to be ended by it; with the settings that it is parametrized with."""
    settings = getattr(request, "param", {"DRAIN_TIMEOUT": "1"})
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(Path(directory), SANDBOX__ORPHAN_GRACE=0, **settings)
        try:
            yield broker.start()
        finally:
            broker.kill()


@pytest.mark.parametrize("broker", [WITH_MODULES], indirect=True, ids=["modules"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_closes_all_sessions(broker: BrokerProcess, number: int) -> None:
    """A stopped broker ends its sessions, notifies their clients, and leaves nothing behind."""
    broker_ids = broker.broker_ids()
    family: set[int] = set()
    async with kernelbroker.connect(broker.url, broker.token) as client:
        session = await client.session().open()
        warm = await session.run(
            "import sys; print('pandas' in sys.modules, 'matplotlib.pyplot' in sys.modules)"
        )
        assert warm.stdout == "True True\n"
        seen = []
        async for event in session.stream(LOOP_UNTIL_INTERRUPTED, timeout=60):
            seen.append(event)
            if isinstance(event, events.Stdout):
                family = broker.family()
                os.kill(broker.pid, number)
        assert isinstance(seen[-1], events.Result)
        assert seen[-1].error == "SessionClosed: the broker is shutting down"
        with pytest.raises(kernelbroker.SessionGone, match="shutting down"):
            await session.run("1")
    assert broker.wait() == 0
    assert len(family) > 4
    assert not family & set(procfs.processes())
    assert broker.remains(broker_ids) == []
    assert not broker.runtime_file.exists()
    assert broker.complaints() == [], broker.log.read_text()


@pytest.mark.parametrize("broker", [{"DRAIN_TIMEOUT": "60"}], indirect=True, ids=["patient"])
async def test_a_drain_lets_cells_end(broker: BrokerProcess) -> None:
    """On SIGTERM a broker lets cells end, closes idle sessions, and answers with Retry-After."""
    async with kernelbroker.connect(broker.url, broker.token) as client:
        session, idle = await client.session().open(), await client.session().open()
        code = "import os, time\nprint('running')\nwhile not os.path.exists('go'): time.sleep(0.1)"
        stream = session.stream(code, timeout=60)
        while not isinstance(event := await anext(stream), events.Stdout):
            pass
        os.kill(broker.pid, signal.SIGTERM)
        await until(lambda: "stopping" in broker.log.read_text())
        with pytest.raises(kernelbroker.SessionGone, match="shutting down"):
            await idle.run("1")
        for refused in (session.run("1"), client.run("1")):
            with pytest.raises(kernelbroker.Unavailable, match="shutting down") as told:
                await refused
            assert told.value.retry_after
        for workspace in broker.data_dir.glob("*/sandboxes/*/workspace"):
            (workspace / "go").touch()
        async for event in stream:
            last = event
        assert isinstance(last, events.Result)
        assert last.success
    assert broker.wait() == 0


async def test_sandboxes_die_with_a_killed_broker(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sandboxes die with a killed broker; the next one with the same directories removes the rest."""
    monkeypatch.setattr(websocket, "RETRY_DELAYS", (0.0, 0.1))  # nobody will answer
    monkeypatch.setattr(websocket, "FURTHER_DELAYS", ())
    dead_ids = broker.broker_ids()

    async def warm() -> bool:
        return bool((await call(broker, "GET", "/api/v1/pool/status"))[1]["idle_containers"])

    await until(warm)  # or the short time in which a lost broker is given up may not do for a lease
    code = "import subprocess\nchild = subprocess.Popen(['setsid', 'sleep', '1000'])\n"
    async with (
        kernelbroker.connect(broker.url, broker.token, timeout=5) as client,
        client.session() as session,
    ):
        with pytest.raises(kernelbroker.ConnectionLost):
            async for event in session.stream(code + LOOP_UNTIL_INTERRUPTED, timeout=60):
                if isinstance(event, events.Stdout):
                    await until(warm)  # see `test_killed_while_it_launches`
                    family = broker.family()
                    broker.kill()
    assert len(family) > 4
    await until(lambda: not family & set(procfs.processes()), lambda: str(family))
    assert broker.broker_ids() == dead_ids
    left_sockets = list(broker.run_dir.glob("*/*.sock"))
    assert left_sockets
    broker.start()
    assert not set(broker.broker_ids()) & set(dead_ids)
    assert not [path for path in left_sockets if path.exists()]
    assert not cgroups(dead_ids)
    async with kernelbroker.connect(broker.url, broker.token) as client:
        assert (await client.run("print('again')")).stdout == "again\n"
    broker.stop_in_order()


async def test_killed_while_it_launches(broker: BrokerProcess) -> None:
    """A broker killed during a launch leaves a jail that has run nothing and is removed later."""
    await until(lambda: len(broker.family()) > 1)
    family = broker.family()
    broker.kill()

    def running() -> list[str]:
        alive = family & set(procfs.processes())
        return [name for pid in alive if (name := program(pid)) not in ("bwrap", None)]

    await until(lambda: not running(), running)
    broker.start()
    assert not family & set(procfs.processes())
    broker.stop_in_order()


def program(pid: int) -> str | None:
    """The name of the file that a process runs; None if it has ended."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/exe").readlink().name
    return None


async def test_brokers_can_share_directories(broker: BrokerProcess) -> None:
    """Brokers can share directories: a start or stop does not affect the other's sandboxes."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session() as session,
    ):
        await session.run("x = 1; _ = open('/data/x', 'w').write('mine')")
        other = BrokerProcess(broker.data_dir.parent, STATE_DIR=broker.data_dir.parent / "state")
        other.runtime_file = broker.runtime_file.with_name("other.json")
        try:
            other.start()
            assert len(broker.broker_ids()) == 2
            async with kernelbroker.connect(other.url, other.token) as other_client:
                assert (await other_client.run("print(2)")).stdout == "2\n"
            assert other.stop() == 0
        finally:
            other.kill()
        assert (await session.run("print(x, open('/data/x').read())")).stdout == "1 mine\n"
    broker.stop_in_order()
