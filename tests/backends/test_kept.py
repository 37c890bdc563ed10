"""Workspaces on the disk: moved whatever user code made of them, locked, and saved from dead brokers."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from kernelbroker_server.backends.directories import Directories, kept_below
from kernelbroker_server.backends.kept import (
    Claimed,
    KeptWorkspace,
    Record,
    claim_unused,
    records,
    remains,
    rescue,
)
from kernelbroker_server.backends.usage import Usage


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    return kept_below(tmp_path)


@pytest.fixture
def workspaces(tmp_path: Path) -> tuple[Path, Path]:
    """Those of two sandboxes, as the backends lay them out."""
    both = (tmp_path / "id/sandboxes/a/workspace", tmp_path / "id/sandboxes/b/workspace")
    for workspace in both:
        workspace.mkdir(parents=True)
    return both


def claim(kept: Path, name: str = "mine", session_id: str = "s1") -> KeptWorkspace:
    return KeptWorkspace.claim(kept, Record(tenant="t", name=name, session_id=session_id))


def move(kept: Path, old: Path, new: Path, *, mounts: bool = False) -> KeptWorkspace:
    workspace = claim(kept)
    workspace.take(old, mounts=mounts)
    workspace.give(new)
    return workspace


def test_everything_moves(kept: Path, workspaces: tuple[Path, Path]) -> None:
    """Files of any name and kind are moved, unopened; nothing is left on the way."""
    old, new = workspaces
    (old / "sub/deep").mkdir(parents=True)
    (old / "sub/deep/a.txt").write_text("deep")
    (old / ("n" * 255)).write_text("long")
    (old / "-rf").write_text("dash")
    (old / "new\nline").write_text("odd")
    (old / "数据 данные").write_text("any script")
    Path(os.fsdecode(bytes(old) + b"/\xff\xfe")).write_text("not UTF-8")
    os.mkfifo(old / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(old)
        with contextlib.chdir(old):  # a socket's path must be short
            listener.bind("socket")
    for number in range(2000):
        (old / f"{number}").touch()
    names = sorted(path.name for path in old.iterdir())
    workspace = move(kept, old, new)
    assert sorted(path.name for path in new.iterdir()) == names
    assert (new / "sub/deep/a.txt").read_text() == "deep"
    assert stat.S_ISFIFO((new / "pipe").lstat().st_mode)
    assert not old.exists()
    assert not workspace.has_files()


def test_links_are_not_followed(kept: Path, workspaces: tuple[Path, Path], tmp_path: Path) -> None:
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
    move(kept, old, new)
    assert (new / "to a directory").readlink() == outside
    assert (new / "to itself").is_symlink()
    assert (new / "to nowhere").is_symlink()
    assert (new / "inner/link").readlink() == outside
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500
    assert (outside / "secret").read_text() == "secret"


def test_what_is_there_already_stays(kept: Path, workspaces: tuple[Path, Path]) -> None:
    """What a sandbox brings (/data/shared) is kept; the user's own waits, and is not lost."""
    old, new = workspaces
    (new / "shared").mkdir()
    (old / "shared").mkdir()
    (old / "shared/mine").write_text("mine")
    (old / "other").write_text("other")
    workspace = move(kept, old, new)
    assert list((new / "shared").iterdir()) == []
    assert (new / "other").read_text() == "other"
    (new / "more").touch()
    workspace.take(new, mounts=True)
    assert sorted(path.name for path in workspace.files.iterdir()) == ["more", "other", "shared"]
    assert (workspace.files / "shared/mine").read_text() == "mine"


def test_locked_directories_move(kept: Path, workspaces: tuple[Path, Path]) -> None:
    """Directories of mode 000 move too, the workspace itself too, for any broker."""
    old, new = workspaces
    (old / "locked").mkdir()
    (old / "locked/file").write_text("kept")
    (old / "locked").chmod(0)
    code = (
        "import os, pathlib, sys\n"
        "from kernelbroker_server.backends.kept import KeptWorkspace, Record\n"
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)\n"
        "kept, old, new = map(pathlib.Path, sys.argv[1:])\n"
        "old.chmod(0)\n"
        "workspace = KeptWorkspace.claim(kept, Record(tenant='t', name='n'))\n"
        "workspace.take(old, mounts=False); workspace.give(new)\n"
    )
    if os.geteuid() == 0:
        # Everything on the way belongs to the user nobody, as it would to the broker's.
        for path in [old, new, old / "locked", old / "locked/file", old.parent, kept.parent]:
            os.chown(path, 65534, 65534)
        for parent in old.parents:
            if stat.S_IMODE(parent.stat().st_mode) & 0o001 == 0:
                parent.chmod(parent.stat().st_mode | 0o011)
    subprocess.run([sys.executable, "-c", code, kept, old, new], check=True)
    assert (new / "locked/file").read_text() == "kept"


def test_one_at_a_time(kept: Path) -> None:
    """Who claims a workspace that is in use is told by which session; others are free."""
    first = claim(kept)
    with pytest.raises(Claimed) as refused:
        claim(kept, session_id="s2")
    assert refused.value.session_id == "s1"
    with pytest.raises(Claimed):
        claim_unused(kept, "t", "mine")
    claim(kept, name="other").close()
    KeptWorkspace.claim(kept, Record(tenant="another", name="mine")).close()
    first.put_back(Usage())
    assert claim_unused(kept, "t", "no such") is None
    again = claim_unused(kept, "t", "mine")
    assert again is not None
    assert again.record.session_id == ""
    again.close()
    again.close()


async def test_remove(kept: Path, workspaces: tuple[Path, Path]) -> None:
    """A removed workspace is gone with its files, and its name is free again."""
    old, _ = workspaces
    (old / "locked").mkdir()
    (old / "locked/file").touch()
    (old / "locked").chmod(0)
    workspace = claim(kept)
    workspace.take(old, mounts=False)
    assert workspace.has_files()
    await workspace.remove()
    assert records(kept) == []
    empty = claim(kept)
    await empty.remove()
    assert list(kept.iterdir()) == remains(kept) == []


def test_no_matter_what_lies_there(kept: Path) -> None:
    """What is no workspace's directory is passed over."""
    assert records(kept) == remains(kept) == []
    (kept / "empty").mkdir(parents=True)
    (kept / "odd").mkdir()
    (kept / "odd/record.json").write_text("{")
    (kept / "file").touch()
    (kept / ".half-removed").mkdir()
    claim(kept).put_back(Usage())
    assert [record.name for record in records(kept)] == ["mine"]
    assert remains(kept) == [kept / ".half-removed"]


def brokers(directory: Path, count: int) -> list[Directories]:
    return [Directories.create(directory / "data", directory / "run") for _ in range(count)]


async def test_rescue(tmp_path: Path) -> None:
    """What a dead broker's sessions had is kept; what the living have is left alone."""
    dead, alive = brokers(tmp_path, 2)
    kept = kept_below(tmp_path / "data")
    held = []
    for name, broker in [("lost", dead), ("alive", alive), ("never given", dead)]:
        workspace = claim(kept, name)
        held.append(workspace)
        if name != "never given":
            sandbox = broker.sandboxes / name / "workspace"
            sandbox.mkdir(parents=True)
            workspace.give(sandbox)
            (sandbox / "file").write_text(name)
            (sandbox / "shared").mkdir()  # where something was mounted
    held[0].close()  # the locks of a process end with it
    held[2].close()
    assert rescue(dead)
    await dead.remove()
    found = {r.name: (r.session_id, r.files) for r in records(kept)}
    assert found == {"lost": ("", 1), "never given": ("", 0), "alive": ("s1", 0)}
    assert (alive.sandboxes / "alive/workspace/file").exists()
    workspace = claim(kept, "lost", "s2")
    assert [path.name for path in workspace.files.iterdir()] == ["file"]
    assert (workspace.files / "file").read_text() == "lost"
    with pytest.raises(Claimed):
        claim(kept, "alive")


def test_claimed_before_the_dead_are_reaped(tmp_path: Path) -> None:
    """A living broker gives out the files of one that died a moment ago."""
    dead, alive = brokers(tmp_path, 2)
    kept = kept_below(tmp_path / "data")
    workspace = claim(kept)
    sandbox = dead.sandboxes / "a/workspace"
    sandbox.mkdir(parents=True)
    workspace.give(sandbox)
    (sandbox / "file").write_text("x")
    workspace.close()
    again = claim(kept, session_id="s2")
    target = alive.sandboxes / "b/workspace"
    target.mkdir(parents=True)
    again.give(target)
    assert (target / "file").read_text() == "x"
