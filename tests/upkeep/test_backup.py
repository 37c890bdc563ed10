"""Backups of a broker that runs, was killed or was stopped; their restoration, here and elsewhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker_server.sessions.durable_store import DurableStore
from kernelbroker_server.upkeep import backup
from kernelbroker_server.upkeep.backup import Place, write_backup
from kernelbroker_server.upkeep.restore import Refused, restore_backup
from kernelbroker_server.upkeep.trees import Counts, Damaged, add_tree, unpack
from kernelbroker_server.workspaces.layout import Layout, Record, read_record
from kernelbroker_server.workspaces.workspace_directory import WorkspaceDirectory

from tests.e2e.support import BrokerProcess, call, until, whole_system

TOKEN = "the token of this test"


def kernelbroker_command(broker: BrokerProcess, *arguments: str | Path) -> tuple[int, str]:
    """Run the command with the settings of this broker. Returns its exit status and what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "kernelbroker.cli", *arguments],
        env=broker.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path, since sockets lie in it."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        yield Path(name)


async def asleep(broker: BrokerProcess) -> bool:
    """Whether a session sleeps."""
    return bool((await call(broker, "GET", "/health"))[1]["asleep"])


class TestWithABroker:
    pytestmark = whole_system

    async def test_a_running_broker_is_saved_and_restored_elsewhere(self, directory: Path) -> None:
        """A backup of a running broker has results, files and checkpoints, and disturbs no session."""
        file = directory / "backup.tar.gz"
        for name in ("here", "there"):
            (directory / name).mkdir()
        sleep = {"SESSIONS__CHECKPOINT": "on_idle", "SESSIONS__SLEEP_AFTER": 1}
        here = BrokerProcess(directory / "here", TOKEN=TOKEN, **sleep)
        with here.running():
            async with kernelbroker.connect(here.url, TOKEN) as client:
                async with client.session("first", workspace="kept") as session:
                    await session.files.write("notes/a.txt", "kept")
                    await session.run("import os; os.symlink('/etc', 'link'); os.mkfifo('pipe')")
                sleeper = client.session("sleeper", keep=True)
                await sleeper.run("z = 'slept'")
                await until(lambda: asleep(here))
                async with client.session("live", workspace="busy") as live:
                    result = await live.run(
                        "awake = (n for n in 'no')\nx = 6 * 7\nopen('b.txt', 'w').write('busy')\nprint(x)"
                    )
                    await live.checkpoint("saved")
                    status, said = kernelbroker_command(here, "backup", file)
                    assert status == 0, said
                    assert "3 workspaces" in said
                    assert "1 entries could not be read" in said  # the pipe
                    assert (await live.run("print(x, open('b.txt').read())")).stdout == "42 busy\n"
                    assert kernelbroker_command(here, "backup", file)[0] == 2  # it exists
                    status, said = kernelbroker_command(here, "restore", "--replace", file)
                    assert (status, "Stop it first" in said) == (2, True)
                    status, report = kernelbroker_command(here, "doctor", "--json")
                    assert status == 0, report  # also beside a broker that runs
            assert not [*(here.data_dir / ".state").glob(".copy-*")]
        assert file.stat().st_mode & 0o777 == 0o600
        there = BrokerProcess(directory / "there", TOKEN=TOKEN, **sleep)
        there.data_dir.mkdir()
        status, said = kernelbroker_command(there, "restore", file)
        assert status == 0, said
        with there.running():
            async with kernelbroker.connect(there.url, TOKEN) as client:
                found = {each.name: each.session_id for each in await client.workspaces()}
                assert (found["kept"], found["busy"]) == (None, None)
                async with client.session("again", workspace="kept") as session:
                    assert await session.files.read_text("notes/a.txt") == "kept"
                    again = await session.run("import os; print(os.readlink('link'))")
                    assert again.stdout == "/etc\n"
                    await session.files.write("notes/a.txt", "changed")
                assert (await client.result("live", result.execution_id)).stdout == "42\n"
                with pytest.raises(kernelbroker.SessionGone, match="the broker ended"):
                    await client.attach("live")
                woken = await client.attach("sleeper", keep=False)
                assert (await woken.run("print(z)")).stdout == "slept\n"
                await woken.close()
                async with client.session(from_checkpoint="saved") as session:
                    assert (await session.run("print(x)")).stdout == "42\n"

    async def test_a_killed_broker_is_saved_with_its_journal(self, directory: Path) -> None:
        """After kill -9 a backup has all results, and replaces what has happened since."""
        broker = BrokerProcess(directory, TOKEN=TOKEN)
        target = directory / "backups"
        target.mkdir()
        try:
            broker.start()
            async with kernelbroker.connect(broker.url, TOKEN) as client:
                session = client.session("mine", workspace="files", keep=True)
                result = await session.run("open('a.txt', 'w').write('one'); print('done')")
                broker.kill()
            assert kernelbroker_command(broker, "backup", target)[0] == 0
            (file,) = target.iterdir()
            status, said = kernelbroker_command(broker, "restore", file)
            assert (status, "--replace" in said) == (2, True)
            status, said = kernelbroker_command(broker, "restore", "--replace", file)
            assert status == 0, said
            assert said.count("kept aside: ") == 3
            broker.start()
            async with kernelbroker.connect(broker.url, TOKEN) as client:
                assert (await client.result("mine", result.execution_id)).stdout == "done\n"
                async with client.session("next", workspace="files") as session:
                    assert await session.files.read_text("a.txt") == "one"
            assert broker.stop() == 0
        finally:
            broker.kill()


@pytest.fixture
async def place(directory: Path) -> Place:
    """The directories of a broker that has ended, with one workspace and an empty store."""
    place = Place(directory / "data", directory / "state")
    store = DurableStore(directory / "state")
    await store.start()
    await store.stop()
    record = Record(tenant="acme", name="files", used_at=time.time() - 100)
    workspace = WorkspaceDirectory.claim(Layout(place.data_dir), record)
    workspace.files.mkdir()
    (workspace.files / "a.txt").write_text("one")
    workspace.close()
    return place


def everything_in(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


async def test_what_is_kept_for_a_time_is_kept_as_long(
    place: Place, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace of an old backup is not older than it was then."""
    monkeypatch.setattr(backup.time, "time", lambda ahead=-(10**6), now=time.time: now() + ahead)
    write_backup(place, directory / "old.tar")
    monkeypatch.undo()
    other = Place(directory / "other", None)
    assert restore_backup(other, directory / "old.tar").workspaces == 1
    (workspace,) = Layout(other.data_dir).directories()
    record = read_record(workspace)
    assert record is not None
    assert abs(time.time() + 10**6 - 100 - record.used_at) < 60
    assert (workspace / "files" / "a.txt").read_text() == "one"


async def test_a_damaged_backup_changes_nothing(place: Place, directory: Path) -> None:
    """A backup that is cut off, damaged or of a newer version is refused, and nothing is changed."""
    file = write_backup(place, directory / "whole.tar.gz").path
    whole = file.read_bytes()
    plain = write_backup(place, directory / "whole.tar").path.read_bytes()
    newer = directory / "newer.tar"
    newer.write_bytes(plain.replace(b'"format": 1', b'"format": 9'))
    damaged = [whole[:-20], whole[: len(whole) // 2], b"", b"not a backup", plain[:2048]]
    before = everything_in(directory)
    for content in damaged:
        file.write_bytes(content)
        with pytest.raises(Damaged):
            restore_backup(place, file, replace=True)
    with pytest.raises(Refused, match="newer"):
        restore_backup(place, newer, replace=True)
    with pytest.raises(Refused, match="--replace"):
        restore_backup(place, newer)
    assert everything_in(directory) == before


async def test_a_full_disk_leaves_no_incomplete_backup(
    place: Place, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the backup cannot be written, there is none."""

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(backup.os, "fsync", full)
    (directory / "backups").mkdir()
    with pytest.raises(OSError, match="No space"):
        write_backup(place, directory / "backups")
    assert [*(directory / "backups").iterdir()] == []


def test_links_of_user_code_are_not_followed(directory: Path) -> None:
    """Links are saved as links; pipes and what is too deep are left out; the rest is unpacked as it was."""
    source, target = directory / "source", directory / "target"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "script").write_text("#!/bin/sh")
    (source / "sub" / "script").chmod(0o751)
    (source / "passwd").symlink_to("/etc/passwd")
    (source / "etc").symlink_to("/etc")
    os.mkfifo(source / "pipe")
    (source / "old").write_text("")
    os.utime(source / "old", (-5, -5))
    os.utime(source / "sub", (1000, 1000))
    name = os.fsencode(source) + b"/\xff\xfe"
    Path(os.fsdecode(name)).write_text("any name")
    deep = os.open(source, os.O_RDONLY)
    for _ in range(300):  # deeper than a path may be long
        os.mkdir("d" * 20, dir_fd=deep)
        below = os.open("d" * 20, os.O_RDONLY, dir_fd=deep)
        os.close(deep)
        deep = below
    os.close(deep)
    counts, file = Counts(), directory / "tree.tar"
    with tarfile.open(file, "w") as archive:
        add_tree(archive, source, "files", counts)
    assert (counts.files, counts.left_out) == (5, 2)
    target.mkdir()
    with tarfile.open(file, "r|") as archive:
        unpack(archive, target)
    found = target / "files"
    assert (found / "passwd").readlink() == Path("/etc/passwd")
    assert (found / "etc").readlink() == Path("/etc")
    assert (found / "sub" / "script").stat().st_mode & 0o777 == 0o751
    assert (found / "sub").stat().st_mtime == 1000
    assert Path(os.fsdecode(os.fsencode(found) + b"/\xff\xfe")).read_text() == "any name"
    subprocess.run(["rm", "-rf", source, target], check=True)


@pytest.mark.parametrize("path", ["../out", "/etc/out", "a/../../out", "link/out"])
def test_an_archive_cannot_write_elsewhere(directory: Path, path: str) -> None:
    """Paths that lead out of the directory are refused, also through a link in the archive."""
    target, file = directory / "target", directory / "evil.tar"
    target.mkdir()
    with tarfile.open(file, "w") as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, str(directory)
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo(path))
    with tarfile.open(file, "r|") as archive, pytest.raises((Damaged, OSError)):
        unpack(archive, target)
    assert not (directory / "out").exists()


def test_about_is_readable(directory: Path) -> None:
    """The first file of a backup says what wrote it."""
    file = write_backup(Place(directory / "data", None), directory / "b.tar").path
    with tarfile.open(file) as archive:
        first = archive.next()
        assert first is not None
        content = archive.extractfile(first)
        assert content is not None
        assert json.load(content)["format"] == 1
