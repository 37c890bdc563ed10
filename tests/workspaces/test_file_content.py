"""Single files of workspaces that no session has, and the public paths of workspaces."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound, TooLarge
from kernelbroker_server.supervisor import Supervisor
from kernelbroker_server.workspaces import layout, workspace_directory
from kernelbroker_server.workspaces.directory_store import DirectoryStore
from kernelbroker_server.workspaces.layout import Layout, Record
from kernelbroker_server.workspaces.quota import Quota
from kernelbroker_server.workspaces.workspace_directory import WorkspaceDirectory

from tests.support.waiting import until

QUOTA = Quota(1024**2, 100)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[DirectoryStore]:
    store = DirectoryStore(tmp_path / "data")
    yield store
    await store.stop()
    assert store._claims == {}


async def chunks(*data: bytes) -> AsyncIterator[bytes]:
    for chunk in data:
        yield chunk


async def write(store: DirectoryStore, path: str, *data: bytes) -> None:
    await store.files.write("tenant", "mine", path, chunks(*data), QUOTA)
    await until(lambda: not store._claims)


async def read(store: DirectoryStore, path: str) -> bytes:
    async with store.files.open("tenant", "mine", path) as file:
        return b"".join([chunk async for chunk in file.chunks(0, file.size)])


def public(store: DirectoryStore) -> Path:
    return store.layout.public / "tenant" / "mine"


async def test_write_and_read(store: DirectoryStore) -> None:
    """A file is written to a workspace that did not exist, replaced, and read."""
    await write(store, "deep/er/file", b"one", b"two")
    assert await read(store, "deep/er/file") == b"onetwo"
    await write(store, "deep/er/file", b"three")
    assert await read(store, "deep/er/file") == b"three"
    assert [path.name for path in (public(store) / "deep/er").iterdir()] == ["file"]
    (found,) = await store.list("tenant")
    assert (found.name, found.session_id, found.usage.files) == ("mine", None, 3)


async def test_refusals(store: DirectoryStore) -> None:
    """Missing files, things that are not files, and invalid paths are refused and leave nothing behind."""
    with pytest.raises(NotFound, match="no workspace"):
        await read(store, "file")
    await write(store, "directory/file", b"x")
    with pytest.raises(NotFound, match="no file"):
        await read(store, "nothing/there")
    for path in ("directory", "directory/file/deeper"):
        with pytest.raises(Conflict):
            await read(store, path)
    with pytest.raises(Conflict, match="is a directory"):
        await write(store, "directory", b"x")
    for path in ("", ".", "/etc/passwd", "../x", "a/../../x", "a\0b", "a" * 5000, "b" * 300):
        with pytest.raises(BadRequest):
            await read(store, path)
        with pytest.raises(BadRequest):
            await write(store, path, b"x")
    with pytest.raises(TooLarge):
        await write(store, "large", bytes(900_000), bytes(200_000))
    await until(lambda: not store._claims)
    assert [path.name for path in public(store).iterdir()] == ["directory"]


async def test_planted_links_lead_nowhere(store: DirectoryStore, tmp_path: Path) -> None:
    """Links of user code are not followed by reads and writes."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "file").write_text("secret")
    await write(store, "file", b"x")
    (public(store) / "link").symlink_to(secret / "file")
    (public(store) / "directory").symlink_to(secret)
    os.mkfifo(public(store) / "pipe")
    for path in ("link", "directory/file", "pipe"):
        with pytest.raises(Conflict):
            await read(store, path)
    with pytest.raises(Conflict):
        await write(store, "directory/new", b"x")
    await write(store, "link", b"replaced")
    assert [path.name for path in secret.iterdir()] == ["file"]
    assert (secret / "file").read_text() == "secret"
    assert not (public(store) / "link").is_symlink()


async def test_workspace_in_use_is_refused(store: DirectoryStore) -> None:
    """The store neither reads nor writes a workspace that a session has."""
    await write(store, "file", b"x")
    workspace = await store.claim("tenant", "session", name="mine", timeout=1)
    with pytest.raises(Conflict, match="session session"):
        await read(store, "file")
    with pytest.raises(Conflict, match="session session"):
        await write(store, "file", b"y")
    workspace.release()
    await until(lambda: not store._claims)
    assert await read(store, "file") == b"x"


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "a/b", "../x", "/etc", "a\0b"])
def test_hostile_names_have_no_path(tmp_path: Path, name: str) -> None:
    """A tenant or workspace name cannot lead out of the public directory."""
    layout = Layout(tmp_path)
    with pytest.raises(ValueError, match="part of a path"):
        layout.link(Record(tenant="tenant", name=name))
    if name:  # a workspace that is not kept has no tenant
        with pytest.raises(ValueError, match="part of a path"):
            layout.link(Record(tenant=name, name="mine"))


def test_what_else_lies_at_the_path_stays(tmp_path: Path) -> None:
    """A directory of an application at the public path is not replaced, and the session works."""
    layout = Layout(tmp_path)
    (layout.public / "tenant" / "mine").mkdir(parents=True)
    (layout.public / "tenant" / "mine" / "file").touch()
    workspace = WorkspaceDirectory.claim(layout, Record(tenant="tenant", name="mine"))
    workspace.publish()
    workspace.close()
    assert [path.name for path in (layout.public / "tenant").iterdir()] == ["mine"]
    assert (layout.public / "tenant" / "mine" / "file").exists()


async def test_older_workspaces_get_their_path(store: DirectoryStore) -> None:
    """A workspace of an older version gets its public path when the broker starts."""
    await write(store, "file", b"x")
    public(store).unlink()
    store.start(Supervisor())
    await until(lambda: (public(store) / "file").exists())


async def test_locks_and_records_are_not_touched_on_the_event_loop(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims, lists, releases and removals lock files and read records in threads."""
    threads: set[int] = set()

    def noted(work: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any) -> Any:
            threads.add(threading.get_ident())
            return work(*args)

        return note

    for module in (layout, workspace_directory):
        for name in ("take_lock", "read_record"):
            monkeypatch.setattr(module, name, noted(getattr(module, name)))
    for name in ("write", "withdraw", "publish"):
        monkeypatch.setattr(WorkspaceDirectory, name, noted(getattr(WorkspaceDirectory, name)))
    await write(store, "file", b"x")
    workspace = await store.claim("tenant", "session", name="mine", timeout=1)
    workspace.release()
    await until(lambda: not store._claims)
    assert len(await store.list("tenant")) == 1
    await store.delete("tenant", "mine")
    assert threads
    assert threading.get_ident() not in threads
