"""Workspaces on the disk: moved with any content, locked, and saved from dead brokers."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from kernelbroker_server.backends.base import Usage
from kernelbroker_server.backends.directories import Directories, remove_tree
from kernelbroker_server.workspaces.layout import Claimed, Layout, Record
from kernelbroker_server.workspaces.recovery import mend_records, rescue
from kernelbroker_server.workspaces.workspace_directory import WorkspaceDirectory

from tests.support.requires import requires


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path)


@pytest.fixture
def workspaces(tmp_path: Path) -> tuple[Path, Path]:
    """The workspaces of two sandboxes, as the backends make them."""
    both = (tmp_path / "id/sandboxes/a/workspace", tmp_path / "id/sandboxes/b/workspace")
    for workspace in both:
        workspace.mkdir(parents=True)
    return both


def claim(layout: Layout, name: str = "mine", session_id: str = "s1") -> WorkspaceDirectory:
    return WorkspaceDirectory.claim(layout, Record(tenant="t", name=name, session_id=session_id))


def move(layout: Layout, old: Path, new: Path, *, mounts: bool = False) -> WorkspaceDirectory:
    workspace = claim(layout)
    workspace.take(old, mounts=mounts)
    workspace.give(new)
    return workspace


def test_files_of_any_kind_are_moved(layout: Layout, workspaces: tuple[Path, Path]) -> None:
    """Files of any name and kind are moved without being opened, and none is left behind."""
    old, new = workspaces
    (old / "sub/deep").mkdir(parents=True)
    (old / "sub/deep/a.txt").write_text("deep")
    (old / ("n" * 255)).write_text("long")
    (old / "-rf").write_text("dash")
    (old / "new\nline").write_text("odd")
    (old / "数据 данные").write_text("any script")
    Path(os.fsdecode(bytes(old) + b"/\xff\xfe")).write_text("not UTF-8")
    os.mkfifo(old / "pipe")
    with (
        socket.socket(socket.AF_UNIX) as listener,
        contextlib.chdir(old),  # a socket's path must be short
    ):
        listener.bind("socket")
    for number in range(2000):
        (old / f"{number}").touch()
    names = sorted(path.name for path in old.iterdir())
    workspace = move(layout, old, new)
    assert sorted(path.name for path in new.iterdir()) == names
    assert (new / "sub/deep/a.txt").read_text() == "deep"
    assert stat.S_ISFIFO((new / "pipe").lstat().st_mode)
    assert not old.exists()
    assert not workspace.has_files()


def test_links_are_not_followed(
    layout: Layout, workspaces: tuple[Path, Path], tmp_path: Path
) -> None:
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
    move(layout, old, new)
    assert (new / "to a directory").readlink() == outside
    assert (new / "to itself").is_symlink()
    assert (new / "to nowhere").is_symlink()
    assert (new / "inner/link").readlink() == outside
    assert stat.S_IMODE(outside.stat().st_mode) == 0o500
    assert (outside / "secret").read_text() == "secret"


def test_entries_of_the_sandbox_are_kept(layout: Layout, workspaces: tuple[Path, Path]) -> None:
    """A sandbox keeps its own /data/shared. A user's entry of that name stays in the store."""
    old, new = workspaces
    (new / "shared").mkdir()
    (old / "shared").mkdir()
    (old / "shared/mine").write_text("mine")
    (old / "other").write_text("other")
    workspace = move(layout, old, new)
    assert list((new / "shared").iterdir()) == []
    assert (new / "other").read_text() == "other"
    (new / "more").touch()
    workspace.take(new, mounts=True)
    assert sorted(path.name for path in workspace.files.iterdir()) == ["more", "other", "shared"]
    assert (workspace.files / "shared/mine").read_text() == "mine"


def test_locked_directories_move() -> None:
    """Directories of mode 000 are moved, also the workspace itself and by a broker that is not root."""
    # Not in `tmp_path`: each pytest that starts on this machine closes its parent to others.
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        _move_locked(Path(name, "data"))


def _move_locked(data_dir: Path) -> None:
    old, new = data_dir / "id/sandboxes/a/workspace", data_dir / "id/sandboxes/b/workspace"
    new.mkdir(parents=True)
    (old / "locked").mkdir(parents=True)
    (old / "locked/file").write_text("kept")
    (old / "locked").chmod(0)
    code = (
        "import os, pathlib, sys\n"
        "from kernelbroker_server.workspaces.layout import Layout, Record\n"
        "from kernelbroker_server.workspaces.workspace_directory import WorkspaceDirectory\n"
        "if os.geteuid() == 0:\n"
        "    os.seteuid(65534)\n"
        "data_dir, old, new = map(pathlib.Path, sys.argv[1:])\n"
        "old.chmod(0)\n"
        "workspace = WorkspaceDirectory.claim(Layout(data_dir), Record(tenant='t', name='n'))\n"
        "workspace.take(old, mounts=False); workspace.give(new)\n"
    )
    if os.geteuid() == 0:
        # All of it belongs to the user of the subprocess, as it would belong to the broker's.
        for path in [
            old,
            new,
            old / "locked",
            old / "locked/file",
            old.parent,
            new.parent,
            data_dir,
        ]:
            os.chown(path, 65534, 65534)
    subprocess.run([sys.executable, "-c", code, data_dir, old, new], check=True)
    assert (new / "locked/file").read_text() == "kept"


def test_workspace_in_use_cannot_be_claimed(layout: Layout) -> None:
    """The error for a workspace in use names its session. Other workspaces are free."""
    first = claim(layout)
    with pytest.raises(Claimed) as refused:
        claim(layout, session_id="s2")
    assert refused.value.session_id == "s1"
    with pytest.raises(Claimed):
        WorkspaceDirectory.claim_unused(layout, "t", "mine")
    claim(layout, name="other").close()
    WorkspaceDirectory.claim(layout, Record(tenant="another", name="mine")).close()
    first.put_back(Usage())
    assert WorkspaceDirectory.claim_unused(layout, "t", "no such") is None
    again = WorkspaceDirectory.claim_unused(layout, "t", "mine")
    assert again is not None
    assert again.record.session_id == ""
    again.close()
    again.close()


async def test_removed_name_is_free_again(layout: Layout, workspaces: tuple[Path, Path]) -> None:
    """Removing a workspace removes its files and frees its name."""
    old, _ = workspaces
    (old / "locked").mkdir()
    (old / "locked/file").touch()
    (old / "locked").chmod(0)
    workspace = claim(layout)
    workspace.take(old, mounts=False)
    assert workspace.has_files()
    gone = workspace.withdraw()
    assert gone is not None
    assert await remove_tree(gone)
    assert layout.records() == []
    empty = claim(layout)
    assert empty.withdraw() is None
    assert list(layout.private.iterdir()) == layout.remains() == []


def test_directories_without_a_record_are_ignored(layout: Layout) -> None:
    """Directories without a valid record are ignored."""
    assert layout.records() == layout.remains() == []
    (layout.private / "empty").mkdir(parents=True)
    (layout.private / "odd").mkdir()
    (layout.private / "odd/record.json").write_text("{")
    (layout.private / "file").touch()
    (layout.private / ".half-removed").mkdir()
    claim(layout).put_back(Usage())
    assert [record.name for record in layout.records()] == ["mine"]
    assert layout.remains() == [layout.private / ".half-removed"]


def brokers(directory: Path, count: int) -> list[Directories]:
    return [Directories.create(directory / "data", directory / "run") for _ in range(count)]


async def test_rescue_of_a_dead_brokers_files(tmp_path: Path) -> None:
    """`rescue` keeps the files of a dead broker's sessions, and does not touch those of others."""
    dead, alive = brokers(tmp_path, 2)
    layout = Layout(tmp_path / "data")
    held = []
    for name, broker in [("lost", dead), ("alive", alive), ("never given", dead)]:
        workspace = claim(layout, name)
        held.append(workspace)
        if name != "never given":
            sandbox = broker.sandboxes / name / "workspace"
            sandbox.mkdir(parents=True)
            workspace.give(sandbox)
            (sandbox / "file").write_text(name)
            (sandbox / "shared").mkdir()  # where something was mounted
    held[0].close()  # the locks of a process end with it
    held[2].close()
    assert rescue(layout, dead.data)
    await dead.remove()
    found = {r.name: (r.session_id, r.files) for r in layout.records()}
    assert found == {"lost": ("", 1), "never given": ("", 0), "alive": ("s1", 0)}
    assert (alive.sandboxes / "alive/workspace/file").exists()
    workspace = claim(layout, "lost", "s2")
    assert [path.name for path in workspace.files.iterdir()] == ["file"]
    assert (workspace.files / "file").read_text() == "lost"
    with pytest.raises(Claimed):
        claim(layout, "alive")


def record_of(layout: Layout, name: str) -> Path:
    return layout.directory("t", name) / "record.json"


def test_a_damaged_record_on_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of which only the public link tells where they are stay there until there is a record."""
    dead, _ = brokers(tmp_path, 2)
    layout = Layout(tmp_path / "data")
    workspace = claim(layout, "lost")
    sandbox = dead.sandboxes / "lost" / "workspace"
    sandbox.mkdir(parents=True)
    workspace.give(sandbox)
    (sandbox / "file").write_text("kept")
    workspace.close()
    record_of(layout, "lost").write_bytes(b"\xff")

    def fails(_self: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(WorkspaceDirectory, "write", fails)
        assert not rescue(layout, dead.data)
        assert ["no space" in each for each in mend_records(layout)] == [True]
    assert record_of(layout, "lost").read_bytes() == b"\xff"
    assert rescue(layout, dead.data)
    assert (claim(layout, "lost", "s2").files / "file").read_text() == "kept"


@pytest.mark.parametrize("target", ["outside", "a loop", "nothing"])
def test_a_damaged_record_whose_link_leads_elsewhere(tmp_path: Path, target: str) -> None:
    """What an application has made of a public link is never taken for the files of a sandbox."""
    dead, _ = brokers(tmp_path, 2)
    layout = Layout(tmp_path / "data")
    workspace = claim(layout, "mine")
    workspace.files.mkdir()
    (workspace.files / "file").write_text("kept")
    workspace.publish()
    workspace.close()
    outside = tmp_path / "outside" / "workspace"
    outside.mkdir(parents=True)
    (outside / "theirs").touch()
    link = layout.public / "t" / "mine"
    link.unlink()
    link.symlink_to({"outside": outside, "a loop": link}.get(target, tmp_path / "nothing"))
    record_of(layout, "mine").write_bytes(b"{")
    assert rescue(layout, dead.data)
    assert (outside / "theirs").exists()
    (record,) = layout.records()
    assert (record.name, record.sandbox, record.is_made) == ("mine", None, True)
    assert (claim(layout, "mine", "s2").files / "file").read_text() == "kept"


def test_a_damaged_record_without_a_link(layout: Layout) -> None:
    """It is told and left alone. One that a session has locked is left to the session."""
    workspace = claim(layout, "mine")
    workspace.publish()
    record_of(layout, "mine").write_bytes(b"{")
    assert mend_records(layout) == []
    workspace.close()
    (layout.public / "t" / "mine").unlink()
    assert ["no link names it" in each for each in mend_records(layout)] == [True]
    assert record_of(layout, "mine").read_bytes() == b"{"


@pytest.mark.parametrize("step", ["take", "put_back"])
def test_a_rescue_that_fails_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The workspace is not locked by a broker that could not take its files."""
    dead, _ = brokers(tmp_path, 2)
    layout = Layout(tmp_path / "data")
    workspace = claim(layout, "lost")
    sandbox = dead.sandboxes / "lost" / "workspace"
    sandbox.mkdir(parents=True)
    workspace.give(sandbox)
    (sandbox / "file").write_text("kept")
    workspace.close()

    def fails(*_args: object, **_options: object) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patched:
        patched.setattr(WorkspaceDirectory, step, fails)
        assert not rescue(layout, dead.data)
    assert rescue(layout, dead.data)
    assert (claim(layout, "lost", "s2").files / "file").read_text() == "kept"


def test_claimed_before_the_dead_are_reaped(tmp_path: Path) -> None:
    """A claim gets the files of a dead broker before `rescue` runs."""
    dead, alive = brokers(tmp_path, 2)
    layout = Layout(tmp_path / "data")
    workspace = claim(layout)
    sandbox = dead.sandboxes / "a/workspace"
    sandbox.mkdir(parents=True)
    workspace.give(sandbox)
    (sandbox / "file").write_text("x")
    workspace.close()
    again = claim(layout, session_id="s2")
    target = alive.sandboxes / "b/workspace"
    target.mkdir(parents=True)
    again.give(target)
    assert (target / "file").read_text() == "x"


async def test_files_in_the_sandbox_of_another_backend(tmp_path: Path) -> None:
    """Files go to sandboxes outside of the store's directory, and back, also if their broker died."""
    dead, alive = (Directories.create(tmp_path / "other", tmp_path / "run") for _ in range(2))
    layout = Layout(tmp_path / "data")
    for broker in (dead, alive):
        workspace = claim(layout, broker.broker_id)
        sandbox = broker.sandboxes / "a" / "workspace"
        sandbox.mkdir(parents=True)
        workspace.give(sandbox)
        (sandbox / "file").write_text("x")
        workspace.close()
    assert rescue(layout, dead.data)
    found = {record.name: record.files for record in layout.records()}
    assert found == {dead.broker_id: 1, alive.broker_id: 0}
    assert (alive.sandboxes / "a/workspace/file").exists()
    again = claim(layout, dead.broker_id, "s2")
    assert (again.files / "file").read_text() == "x"
    public = layout.public / again.record.tenant / alive.broker_id
    assert (public / "file").read_text() == "x"


@requires("root")
async def test_files_get_the_owner_of_the_next_sandbox(tmp_path: Path) -> None:
    """Files of one backend's user go to that of another one, but not other files or links' targets."""
    layout = Layout(tmp_path / "data")
    outside = tmp_path / "outside"
    outside.write_text("x")
    os.chown(outside, 1234, 1234)
    workspace = claim(layout)

    workspace.files.mkdir()
    os.chown(workspace.files, 1234, 1234)
    for path in ("file", "of root"):
        (workspace.files / path).touch()
    (workspace.files / "link").symlink_to(outside)
    here = os.open(workspace.files, os.O_DIRECTORY)
    for _ in range(1200):  # deeper than Python may recurse
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_DIRECTORY, dir_fd=here)
        os.chown("d", 1234, 1234, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    os.chown(workspace.files / "file", 1234, 1234)
    sandbox = tmp_path / "sandbox"
    sandbox.mkdir()
    os.chown(sandbox, 4321, 4321)
    workspace.give(sandbox)
    assert (sandbox / "file").stat().st_uid == 4321
    assert (sandbox / "of root").stat().st_uid == 0
    assert outside.stat().st_uid == 1234
    assert sandbox.joinpath(*["d"] * 1200).stat().st_uid == 4321
    assert await remove_tree(sandbox)  # pytest cannot
