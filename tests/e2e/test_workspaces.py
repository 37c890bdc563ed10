"""Workspaces that outlive their sessions and their broker, and their quota."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from signal import SIGKILL, SIGTERM

import kernelbroker
import pytest

from tests.e2e.support import (
    LOOP_UNTIL_INTERRUPTED,
    BrokerProcess,
    call,
    opened,
    running_broker,
    until,
    whole_system,
)
from tests.support.results import cause_of

pytestmark = whole_system

ONE_FILE = "_ = open(f'/data/{number}', 'wb').write(bytes(4 << 20))"


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    """One whose sessions may write 100 MiB."""
    with running_broker(POOL__MIN_SIZE=2, SANDBOX__WORKSPACE_SIZE="100MiB") as broker:
        yield broker


async def write(session: kernelbroker.Session, name: str, text: str) -> None:
    result = await session.run(f"_ = open({name!r}, 'w').write({text!r})")
    assert result.success, result.error


async def read(session: kernelbroker.Session, name: str) -> str:
    result = await session.run(f"print(open({name!r}).read())")
    assert result.success, result.error
    return result.stdout.removesuffix("\n")


async def test_from_session_to_session(client: kernelbroker.Broker, broker: BrokerProcess) -> None:
    """A named workspace goes from one session to the next, over the SDK, REST and the command line."""
    async with client.session(workspace="report") as session:
        assert session.info is not None
        assert session.info.workspace == "report"
        await write(session, "/data/数据\n.txt", "from the SDK")
        status, answer = await call(broker, "POST", "/api/v1/sessions", {"workspace": "report"})
        assert status == 409
        assert session.session_id in answer["error"]["message"]
        with pytest.raises(kernelbroker.Conflict, match="in use"):
            await client.delete_workspace("report")
    body = {"workspace": "report", "code": "print(open('/data/数据\\n.txt').read())"}
    status, answer = await call(broker, "POST", "/api/v1/exec", body, accept="application/json")
    assert (status, answer["stdout"]) == (200, "from the SDK\n")

    async def run(*arguments: str) -> str:
        argv = [sys.executable, "-m", "kernelbroker.cli", *arguments]
        environ = broker.client_environ
        return await asyncio.to_thread(subprocess.check_output, argv, env=environ, text=True)

    code = "import os; print(os.listdir('/data')); _ = open('/data/b', 'w').write('x')"
    printed = await run("exec", "--workspace", "report", code)
    assert printed == "['数据\\n.txt']\n"

    async def put_away() -> bool:
        found = [w for w in await client.workspaces() if w.name == "report"]
        return bool(found) and found[0].session_id is None

    await until(put_away)
    lines = (await run("workspaces")).splitlines()
    found = {w["name"]: w for w in map(json.loads, lines)}
    assert found["report"]["files"] == 2
    assert found["report"]["size"] > 0
    assert found["report"]["expires_at"] > found["report"]["last_used_at"]
    await run("workspaces", "--delete", "report")
    with pytest.raises(kernelbroker.NotFound):
        await client.delete_workspace("report")
    async with client.session(workspace="report") as session:
        assert (await session.run("import os; print(os.listdir('/data'))")).stdout == "[]\n"


async def test_nothing_is_kept_of_single_cells(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """The files of a cell without a session are deleted with it."""
    before = {workspace.name for workspace in await client.workspaces()}
    assert (await client.run("_ = open('/data/x', 'w').write('x')")).success
    body = {"code": "_ = open('/data/x', 'w').write('x')"}
    status, _ = await call(broker, "POST", "/api/v1/exec", body, accept="application/json")
    assert status == 200
    kept = {workspace.name for workspace in await client.workspaces()}
    assert kept <= before


async def test_a_cell_over_the_quota_is_interrupted(client: kernelbroker.Broker) -> None:
    """A cell over the quota is interrupted with the cause; its variables stay, and it can delete."""
    async with client.session(workspace_retention=0) as session:
        await session.run("before = 1")
        code = f"import time\nfor number in range(200):\n    {ONE_FILE}; time.sleep(0.05)"
        result = await session.run(code, timeout=120)
        assert cause_of(result) == "quota_exceeded"
        assert str(result.error).startswith("QuotaExceeded: the workspace holds 1")
        assert "its limit is 100 MiB; delete files" in str(result.error)
        result = await session.run("print(before)")
        assert (result.success, result.stdout) == (True, "1\n")
        assert "QuotaExceeded: the workspace holds" in result.stderr
        result = await session.run(
            "import os\nfor name in os.listdir('/data'): os.unlink(f'/data/{name}')"
        )
        assert (result.success, result.stderr) == (True, "")
        result = await session.run("open('/data/large', 'wb').write(bytes(101 << 20))")
        assert "File too large" in str(result.error)


async def test_an_upload_over_the_quota_is_refused(
    client: kernelbroker.Broker, broker: BrokerProcess
) -> None:
    """An upload that does not fit is refused before or during the transfer, and leaves nothing."""

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield bytes(1 << 20)

    async with client.session(workspace_retention=0) as session:
        await session.files.write("half", bytes(60 << 20))
        for data in (bytes(60 << 20), endless()):
            with pytest.raises(
                kernelbroker.TooLarge, match=r"limit is 100 MiB: .* does not fit; delete"
            ):
                await session.files.write("other", data)
        assert [file.path for file in await session.files.list()] == ["half"]
        result = await session.run("import os; os.unlink('half')")
        assert result.success
        await session.files.write("other", bytes(60 << 20))


async def test_a_cell_that_continues_to_write_loses_its_kernel(client: kernelbroker.Broker) -> None:
    """A cell that ignores its interrupt and writes loses its kernel; the files stay."""
    code = f"""
import time
for number in range(2000):
    try:
        {ONE_FILE}
        time.sleep(0.05)
    except KeyboardInterrupt:
        pass"""
    async with client.session(workspace_retention=0) as session:
        result = await session.run(code, timeout=120)
        assert (cause_of(result), result.kernel_restarted) == ("quota_exceeded", True)
        result = await session.run("import os; print(len(os.listdir('/data')) > 25)")
        assert result.stdout == "True\n"


@pytest.mark.parametrize("end", ["stopped", "killed", "killed while it runs"])
async def test_from_broker_to_broker(end: str) -> None:
    """The next broker has the files of a session, however the broker before it ended."""
    with running_broker(SANDBOX__ORPHAN_GRACE=0) as broker:
        code = "import os; os.makedirs('/data/deep/er'); os.symlink('/', '/data/root')\n"
        code += "_ = open('/data/file', 'w').write('kept')\n"
        if end == "killed while it runs":
            code += LOOP_UNTIL_INTERRUPTED
        body = {"session_id": "mine", "code": code, "timeout": 60}
        async with opened(broker, "POST", "/api/v1/exec", body) as response:
            if end == "killed while it runs":
                await response.until_seen(b"the cell runs")
                broker.kill()
            else:
                assert b'"success":true' in await response.rest()
                assert broker.stop(SIGKILL if end == "killed" else SIGTERM) in (0, -SIGKILL)
        broker.start()
        kept = {path.name for path in broker.data_dir.iterdir()}
        assert {".state", ".workspaces", "workspaces"} <= kept
        async with kernelbroker.connect(broker.url, broker.token) as client:
            (mine,) = await client.workspaces()
            assert (mine.name, mine.files, mine.session_id) == ("mine", 4, None)
            async with client.session(workspace="mine") as session:
                assert await read(session, "/data/file") == "kept"
                result = await session.run("import os; print(os.readlink('/data/root'))")
                assert result.stdout == "/\n"
