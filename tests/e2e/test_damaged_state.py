"""A broker starts whatever a crash, a full disk or a newer version has made of what it kept.

What cannot be understood is set aside, which the log and `/health` say. All else goes on, and no file of a
user is lost with what describes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import kernelbroker
import pytest

from tests.e2e.support import BrokerProcess, call, opened, whole_system

pytestmark = whole_system

KEY = "used-once"
DATABASE = ("store.sqlite3", "store.sqlite3-wal", "journal-")
"""The beginnings of the names of what holds results."""
USERS_FILES = ("/files/", ".data", "/run/", ".log")
"""Parts of paths that are not the broker's own: users' files, what jails see, its log."""


def _newer(content: bytes) -> bytes:
    """What a version to come might write: other types in all fields, other heads."""
    try:
        fields = json.loads(content)
    except ValueError:
        return b"\xff" * 8 + content
    if not isinstance(fields, dict):
        fields = {"value": fields}
    return json.dumps(
        {"version": 99} | {name: {"is now": fields[name]} for name in fields}
    ).encode()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "random": lambda content: random.Random(len(content)).randbytes(max(len(content), 16)),
    "newer": _newer,
}


class Left:
    """What a killed broker has left, as often as it is wanted, at the same place."""

    def __init__(self, directory: Path) -> None:
        self.broker = BrokerProcess(directory, SANDBOX__ORPHAN_GRACE=0)
        self.is_made = False
        self._directory = directory
        self._copy = directory.with_name(f"{directory.name}.copy")

    async def make(self) -> None:
        self._directory.mkdir(exist_ok=True)
        broker = self.broker.start()
        async with kernelbroker.connect(broker.url, broker.token) as client:
            async with client.session("past", workspace="kept") as session:
                await session.run("open('kept.txt', 'w').write('k'); x = 1; print(1)")
                await session.checkpoint("mark")
                await session.post_event("plan", {"steps": ["one"]})
            await client.session("open", workspace="held").open()
            await client.session("open").run("open('held.txt', 'w').write('h')")
        headers = {"Idempotency-Key": KEY}
        async with opened(broker, "POST", "/api/v1/exec", {"code": "1"}, **headers) as response:
            assert b"result" in await response.rest()
        broker.kill()
        await asyncio.to_thread(self._copy_to, self._directory, self._copy)
        self.is_made = True

    def put_back(self) -> None:
        self.broker.kill()
        shutil.rmtree(self._directory)
        self._copy_to(self._copy, self._directory)

    @staticmethod
    def _copy_to(source: Path, target: Path) -> None:
        subprocess.run(["cp", "-a", source, target], check=True)  # owners, too

    def files(self) -> list[Path]:
        """All that the broker has written for itself."""
        found = [path for path in self._directory.rglob("*") if path.is_file()]
        return sorted(path for path in found if not any(part in str(path) for part in USERS_FILES))


@pytest.fixture(scope="module")
def left() -> Iterator[Left]:
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        left = Left(Path(directory) / "b")
        try:
            yield left
        finally:
            left.broker.kill()


@pytest.fixture
async def state(left: Left) -> Left:
    if not left.is_made:
        await left.make()
    left.put_back()
    return left


def change(files: Sequence[Path], damage: str) -> None:
    for path in files:
        path.write_bytes(DAMAGES[damage](path.read_bytes()))


async def expect_service(broker: BrokerProcess) -> dict[str, Any]:
    """A broker serves everything, and every file of a user is there. Returns what `/health` says."""
    log = broker.log.read_text(errors="replace")
    assert "Traceback" not in log, log
    for path in ("sessions", "ended-sessions", "checkpoints", "workspaces"):
        status, answer = await call(broker, "GET", f"/api/v1/{path}")
        assert status == 200, answer
    for path in ("executions", "events", "notebook", "executions/unknown"):
        async with opened(broker, "GET", f"/api/v1/sessions/past/{path}") as response:
            assert response.status < 500, broker.log.read_text()
    headers = {"Idempotency-Key": KEY}
    async with opened(broker, "POST", "/api/v1/exec", {"code": "1"}, **headers) as response:
        assert response.status < 500, broker.log.read_text()
        await response.rest()
    async with kernelbroker.connect(broker.url, broker.token) as client:
        for workspace, name in (("kept", "kept.txt"), ("held", "held.txt")):
            async with client.session(workspace=workspace) as session:
                assert (await session.run(f"print(open('{name}').read())")).stdout == f"{name[0]}\n"
        try:
            async with client.session(from_checkpoint="mark") as session:
                assert (await session.run("print(x)")).stdout == "1\n"
        except kernelbroker.NotFound:
            pass
        await client.session().run("1")
    status, answer = await call(broker, "GET", "/health")
    assert status == 200
    log = broker.log.read_text(errors="replace")
    assert "Traceback" not in log, log
    return dict(answer)


async def expect_start(state: Left) -> list[str]:
    """Start a broker, which serves everything. Returns what its `/health` complains of."""
    data = list(state.broker.data_dir.glob(".checkpoints/*/*.data"))
    assert len(data) == 1
    state.broker.start()
    reasons: list[str] = (await expect_service(state.broker))["reasons"]
    assert state.broker.stop() == 0
    assert data[0].exists()  # it can be used when its description is mended
    return reasons


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_results(state: Left, damage: str) -> None:
    """The database and its journal cannot be read: they are kept aside."""
    damaged = [path for path in state.files() if path.name.startswith(DATABASE)]
    assert len(damaged) >= 2
    change(damaged, damage)
    reasons = await expect_start(state)
    if damage in ("random", "newer"):  # others are as after a power cut
        assert any("kept aside" in each for each in reasons)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_files(state: Left, damage: str) -> None:
    """Every other file at once."""
    damaged = [path for path in state.files() if not path.name.startswith(DATABASE)]
    names = {path.name for path in damaged}
    assert names >= {"epoch", "lock", "token", "seal-key", "e2b-key", "record.json", "mark.json"}
    change(damaged, damage)
    reasons = "\n".join(await expect_start(state))
    assert "checkpoint" in reasons
    assert damage == "random" or "seal-key" in reasons  # 32 random bytes are a key


COLUMNS = {
    "sessions": ["options"],
    "executions": ["request", "packages", "findings", "progress"],
    "events": ["json"],
    "entries": ["value"],
    "session_events": ["json"],
}
"""What is not a number or a name, in each table of the database."""


@pytest.mark.parametrize("damage", DAMAGES)
async def test_damaged_rows(state: Left, damage: str) -> None:
    """Every row of every table: they are left out."""
    path = state.broker.data_dir / ".state" / "store.sqlite3"
    state.broker.start()  # copies the journal
    state.broker.kill()
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.create_function("damaged", 1, DAMAGES[damage])
        tables = {
            name
            for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        assert tables - {"state"} == COLUMNS.keys()
        for table, columns in COLUMNS.items():
            for column in columns:
                changed = database.execute(f"UPDATE {table} SET {column} = damaged({column})")
                assert changed.rowcount > 0
        database.commit()
    reasons = "\n".join(await expect_start(state))
    assert "rows that cannot be read" in reasons


@pytest.mark.long
@pytest.mark.parametrize("damage", DAMAGES)
async def test_each_damaged_file(state: Left, damage: str) -> None:
    """One file after the other, each with another start of a broker."""
    for number in range(len(state.files())):
        change([state.files()[number]], damage)
        await expect_start(state)
        state.put_back()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_record_of_a_sandbox(damage: str) -> None:
    """Its session ends with what was in memory; its files stay, and nothing of the sandbox."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(Path(directory), POOL__MIN_SIZE=0)
        try:
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                session = client.session("mine", workspace="files")
                await session.run("open('x.txt', 'w').write('x')")
                broker.kill()
            (broker_id,) = broker.broker_ids()
            records = list((broker.data_dir / broker_id).rglob("record.json"))
            assert records
            workspaces = list(broker.data_dir.glob(".workspaces/*/record.json"))
            assert len(workspaces) == 1
            change([*records, *workspaces], damage)
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                with pytest.raises(kernelbroker.SessionGone):
                    await client.attach("mine")
                async with client.session(workspace="files") as session:
                    assert (await session.run("print(open('x.txt').read())")).stdout == "x\n"
                (listed,) = await client.workspaces()
                assert listed.name == "files"
            assert broker.stop() == 0
            assert broker.remains(broker.broker_ids()) == []
        finally:
            broker.kill()
