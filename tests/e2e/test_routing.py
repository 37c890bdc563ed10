"""Cells of sessions whose template is `auto`, in jails and containers of one broker."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import pytest

from tests.backends.probes import containers_of
from tests.e2e.support import BrokerProcess, call, running_broker, until, whole_system
from tests.support.requires import requires

pytestmark = [*whole_system, requires("docker")]


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    box = {"backend": "docker", "memory": "600MiB", "pool": {"min_size": 0}}
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(
            Path(directory),
            TEMPLATES=json.dumps({"box": box}),
            DOCKER__DATA_DIR=Path(directory) / "containers",
        )
        with broker.running():
            yield broker
        assert containers_of(Path(directory) / "containers") == []


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(broker.url, broker.token) as client:
        yield client


async def test_a_session_moves_from_a_jail_to_a_container(client: kernelbroker.Broker) -> None:
    """Safe code runs in a jail; risky code moves the session, with its files and its variables."""
    async with client.session(template="auto", env={"GREETING": "hello"}) as session:
        first = await session.run(
            "import pandas as pd\ndf = pd.DataFrame({'a': [1, 2]})\nlock = (x for x in df)\n"
            "with open('note.txt', 'w') as file: n = file.write('kept')"
        )
        assert (first.success, first.sandbox, first.isolation) == (True, "subprocess", "bubblewrap")
        assert first.template == "default"

        code = (
            "import os, subprocess\nname = subprocess.run(['id', '-un'], capture_output=True)\n"
            "y = [df.a.sum().item(), open('note.txt').read(), os.environ['GREETING'],"
            " os.path.exists('/.dockerenv')]"
        )
        risky = await session.run(code, result_var="y")
        assert risky.return_value == [3, "kept", "hello", True], risky
        assert (risky.sandbox, risky.template, risky.isolation) == (
            "docker_simple",
            "box",
            "container",
        )
        assert risky.moved is not None
        assert (risky.moved.from_, risky.moved.to) == ("default", "box")
        left = sorted(each.name for each in risky.moved.left)
        assert left == ["file", "lock"]  # an open file, and a generator

        after = await session.run("open('note.txt', 'a').write(' and changed')")
        assert (after.success, after.moved, after.template) == (True, None, "box")
        listing = await session.run("cat note.txt", language="shell")
        assert listing.stdout == "kept and changed"

        rejected = await session.run("rm -rf /", language="shell")
        assert (rejected.success, rejected.exit_code, rejected.sandbox) == (False, -1, "REJECT")
        assert str(rejected.error).startswith("execution rejected: ")
        assert (await session.run("df.a.sum()")).success


async def test_cells_without_a_session_are_routed(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """Each cell over REST gets its sandbox, and a rejected one its result, by JSON."""
    for code, language, expected in (
        ("1 + 1", "python", ("subprocess", "default")),
        ("console.log(require('child_process') && 1)", "javascript", ("docker_simple", "box")),
        ("rm -rf /", "shell", ("REJECT", None)),
    ):
        body = {"code": code, "language": language, "template": "auto"}
        headers = {"Accept": "application/json"}
        status, answer = await call(broker, "POST", "/api/v1/exec", body, **headers)
        assert status == 200, answer
        result = answer["result"]
        assert (result["sandbox"], result["template"]) == expected
        assert result["moved"] is None
    assert result["exit_code"] == -1
    health = await client.health()
    assert health["routing"]["docker_simple"] == {"template": "box", "isolation": "container"}
    assert health["routing"]["subprocess"] == {"template": "default", "isolation": "bubblewrap"}
    assert health["routing"]["notes"] == []


async def test_a_session_that_moved_stays_there_after_a_kill() -> None:
    """The next broker goes on with it where it was, and routes its cells."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(Path(directory), SHUTDOWN="adopt")
        try:
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                session = client.session("mine", template="auto", keep=True)
                assert (await session.run("x = 1")).template == "default"
                assert (await session.run("import os; os.environ")).template == "strict"
            broker.kill()
            broker.start()
            async with (
                kernelbroker.connect(broker.url, broker.token) as client,
                client.session("mine", template="auto") as session,
            ):
                assert session.info is not None
                assert session.info.runs_in == "strict"
                after = await session.run("x += 1", result_var="x")
                assert (after.return_value, after.template, after.moved) == (2, "strict", None)
                rejected = await session.run("rm -rf /", language="shell")
                assert rejected.exit_code == -1
            assert await asyncio.to_thread(broker.stop, signal.SIGINT) == 0
        finally:
            broker.kill()


async def test_a_session_that_moved_sleeps_and_wakes_where_it_was() -> None:
    """A routed session that has moved gives its sandbox back, and wakes in one of the same template."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        settings = {"SESSIONS__CHECKPOINT": "on_idle", "SESSIONS__SLEEP_AFTER": 0.3}
        with BrokerProcess(Path(directory), **settings).running() as broker:
            async with kernelbroker.connect(broker.url, broker.token) as client:
                async with client.session("mine", template="auto", keep=True) as session:
                    assert (await session.run("x = 1")).template == "default"
                    assert (await session.run("import os; os.environ")).template == "strict"

                async def asleep() -> bool:
                    return bool((await client.health())["asleep"] == 1)

                await until(asleep)
                async with await client.attach("mine") as session:
                    after = await session.run("x += 1", result_var="x")
                    assert (after.return_value, after.template, after.moved) == (2, "strict", None)


async def test_a_broker_of_jails_serves_every_row() -> None:
    """Without containers, code that needs isolation moves to a jail of the profile `strict`."""
    with running_broker() as broker:
        async with (
            kernelbroker.connect(broker.url, broker.token) as client,
            client.session(template="auto") as session,
        ):
            assert (await session.run("x = 1")).template == "default"
            risky = await session.run("import os; os.environ\nx += 1", result_var="x")
            assert (risky.return_value, risky.sandbox) == (2, "docker_simple")
            assert (risky.template, risky.isolation) == ("strict", "bubblewrap")
            assert risky.moved is not None and risky.moved.left == []
            big = await session.run("open('big', 'wb').write(bytes(11 << 20))")
            assert "File too large" in str(big.error)
