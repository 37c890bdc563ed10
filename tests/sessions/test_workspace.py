"""A session's files on their way from one sandbox to the next, whatever user code made of them."""

from __future__ import annotations

import asyncio
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions.session import Session
from kernelbroker_server.sessions.workspace import HeldFiles

from tests.support.backend import FakeBackend
from tests.support.waiting import until
from tests.support.world import World, result_of, submit, world


@pytest.fixture
def workspaces(tmp_path: Path) -> tuple[Path, Path]:
    """Those of two sandboxes, as the backends lay them out."""
    both = (tmp_path / "sandboxes/a/workspace", tmp_path / "sandboxes/b/workspace")
    for workspace in both:
        workspace.mkdir(parents=True)
    return both


def move(old: Path, new: Path) -> HeldFiles:
    held = HeldFiles()
    held.take(old)
    held.give(new)
    return held


def test_everything_moves(workspaces: tuple[Path, Path]) -> None:
    """Files of any name and kind are moved, unopened; nothing is left on the way."""
    old, new = workspaces
    (old / "sub/deep").mkdir(parents=True)
    (old / "sub/deep/a.txt").write_text("deep")
    (old / ("n" * 255)).write_text("long")
    (old / "-rf").write_text("dash")
    (old / "new\nline").write_text("odd")
    Path(os.fsdecode(bytes(old) + b"/\xff\xfe")).write_text("not UTF-8")
    os.mkfifo(old / "pipe")
    names = sorted(path.name for path in old.iterdir())
    move(old, new)
    assert sorted(path.name for path in new.iterdir()) == names
    assert (new / "sub/deep/a.txt").read_text() == "deep"
    assert stat.S_ISFIFO((new / "pipe").lstat().st_mode)
    assert list(old.iterdir()) == []
    assert sorted(p.name for p in old.parents[1].iterdir()) == ["a", "b"]


def test_links_are_not_followed(workspaces: tuple[Path, Path], tmp_path: Path) -> None:
    """A link is moved as a link; what it points to is neither moved, opened nor unlocked."""
    old, new = workspaces
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    outside.chmod(0o500)
    (old / "to a directory").symlink_to(outside)
    (old / "to itself").symlink_to("to itself")
    (old / "to nowhere").symlink_to("/nowhere")
    (old / "inner").mkdir()
    (old / "inner/link").symlink_to(outside)
    move(old, new)
    assert (new / "to a directory").readlink() == outside
    assert (new / "to itself").is_symlink()
    assert (new / "to nowhere").is_symlink()
    assert (new / "inner/link").readlink() == outside
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500
    assert (outside / "secret").read_text() == "secret"


def test_what_is_there_already_stays(workspaces: tuple[Path, Path]) -> None:
    """What the new sandbox brings (/data/shared) is kept, even where a link stands in its place."""
    old, new = workspaces
    (new / "shared").mkdir()
    (new / "link").symlink_to("/nowhere")
    (old / "shared").symlink_to("/")
    (old / "link").write_text("x")
    (old / "mine").write_text("mine")
    move(old, new)
    assert (new / "shared").is_dir()
    assert not (new / "shared").is_symlink()
    assert (new / "link").is_symlink()
    assert (new / "mine").read_text() == "mine"


async def test_discard(workspaces: tuple[Path, Path]) -> None:
    """Files that nobody takes any more are removed, directories without permissions as well."""
    old, _ = workspaces
    (old / "locked").mkdir()
    (old / "locked/file").write_text("x")
    (old / "locked").chmod(0)
    held = HeldFiles()
    await held.discard()
    held.take(old)
    await held.discard()
    await held.discard()
    assert sorted(p.name for p in old.parents[1].iterdir()) == ["a", "b"]


def test_locked_directories_move(workspaces: tuple[Path, Path]) -> None:
    """A directory of mode 000 moves too, for a broker that is not root as well."""
    old, new = workspaces
    (old / "locked").mkdir()
    (old / "locked/file").write_text("kept")
    (old / "locked").chmod(0)
    code = (
        "import os, pathlib, sys\n"
        "from kernelbroker_server.sessions.workspace import HeldFiles\n"
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)\n"
        "old, new = map(pathlib.Path, sys.argv[1:])\n"
        "held = HeldFiles(); held.take(old); held.give(new)\n"
    )
    if os.geteuid() == 0:
        # Everything on the way belongs to the user nobody, as it would to the broker's.
        for path in [old, new, old / "locked", old / "locked/file", old.parents[1]]:
            os.chown(path, 65534, 65534)
        for parent in old.parents:
            if stat.S_IMODE(parent.stat().st_mode) & 0o001 == 0:
                parent.chmod(parent.stat().st_mode | 0o011)
    subprocess.run([sys.executable, "-c", code, old, new], check=True)
    assert (new / "locked/file").read_text() == "kept"


# In a session.


def workspace_of(backend: FakeBackend, session: Session) -> Path:
    warm = session._lease._warm
    assert warm is not None
    return backend.live[warm.sandbox.id].workspace


async def replaced(w: World, session: Session, how: str) -> None:
    """The session's kernel is replaced, in one of the ways in which that happens."""
    if how == "restart":
        await session.restart()
    else:
        await result_of(submit(session, "die"))
        await result_of(submit(session))


@pytest.mark.parametrize("how", ["restart", "death"])
@pytest.mark.parametrize("sizes", [PoolLimits(2, 4), PoolLimits(0, 1)], ids=["idle", "none"])
async def test_files_survive_replacement(backend: FakeBackend, how: str, sizes: PoolLimits) -> None:
    """Files are there after a replacement, also where the new sandbox came after the old had gone."""
    async with world(backend, pool=sizes) as w:
        session = await w.open()
        old = workspace_of(backend, session)
        (old / "kept").write_text("kept")
        await replaced(w, session, how)
        new = workspace_of(backend, session)
        assert new != old
        assert (new / "kept").read_text() == "kept"
        await until(lambda: not old.exists())


async def test_files_wait_for_a_sandbox(backend: FakeBackend) -> None:
    """Where there is no sandbox to be had, the files wait for the next one."""
    hold = asyncio.Event()

    async def launch(_sandbox: object) -> None:
        await hold.wait()

    async with world(backend, pool=PoolLimits(0, 1), acquire_timeout=0.05) as w:
        session = await w.open()
        (workspace_of(backend, session) / "kept").write_text("kept")
        backend.on_launch = launch
        await result_of(submit(session, "die"))
        assert not (await result_of(submit(session))).success
        hold.set()
        while not (await result_of(submit(session))).success:
            pass
        assert (workspace_of(backend, session) / "kept").read_text() == "kept"


async def test_files_go_with_the_session(backend: FakeBackend) -> None:
    """A session that is closed while its files wait takes them with it."""

    async def launch(_sandbox: object) -> None:
        await asyncio.Event().wait()

    async with world(backend, pool=PoolLimits(0, 1), acquire_timeout=0.05) as w:
        session = await w.open()
        (workspace_of(backend, session) / "file").write_text("x")
        backend.on_launch = launch
        await result_of(submit(session, "die"))
        await until(lambda: w.pool.status().busy_containers == 0)
        await session.close("enough")
        left = [p.name for p in (backend.root / "sandboxes").iterdir()]
        assert not [name for name in left if name.startswith("held-")]


async def test_files_of_others(backend: FakeBackend) -> None:
    """No session finds another one's files."""
    async with world(backend) as w:
        first = await w.open()
        (workspace_of(backend, first) / "mine").write_text("x")
        await first.close("enough")
        second = await w.open()
        assert list(workspace_of(backend, second).iterdir()) == []
