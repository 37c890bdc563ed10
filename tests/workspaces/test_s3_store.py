"""Workspaces in a bucket of a real server, used by brokers with directories of their own, as on several
machines."""

from __future__ import annotations

import asyncio
import hashlib
import os
import secrets
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import kernelbroker
import msgspec
import obstore
import pytest
from kernelbroker.protocol.errors import Conflict, NotFound, Unavailable
from kernelbroker_server.workspaces import bucket, directory_store, s3_replica
from kernelbroker_server.workspaces.bucket import Bucket, Changed
from kernelbroker_server.workspaces.directory_store import DirectoryStore
from kernelbroker_server.workspaces.quota import Quota
from kernelbroker_server.workspaces.s3_copy import CopyRecord, _unpacked, prefix_of
from kernelbroker_server.workspaces.s3_replica import S3Replica, SaveOptions
from kernelbroker_server.workspaces.snapshot import PIECE

from tests.e2e.support import BrokerProcess, running_broker
from tests.support.backend import FakeBackend, fake_backend, spotless_backend
from tests.support.requires import requires
from tests.support.s3 import S3Server
from tests.support.world import World, world

_NEVER = 10_000.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.stop()


class Machine:
    """A broker with a disk of its own."""

    def __init__(self, backend: FakeBackend, world: World) -> None:
        self.backend, self.world = backend, world

    def files(self, session: Any) -> Path:
        return self.backend.live[session._lease._warm.sandbox.id].workspace

    async def close(self, session: Any) -> None:
        """Close a session, and wait until its files are in the bucket."""
        await session.close("enough")
        async with asyncio.timeout(60):
            while self.world.workspaces_in_use:  # noqa: ASYNC110
                await asyncio.sleep(0.01)


class Site:
    """Some machines with one bucket."""

    def __init__(self, server: S3Server, stack: AsyncExitStack) -> None:
        self._server, self._stack = server, stack
        self.prefix = secrets.token_hex(4)
        self.objects = server.store(self.prefix)

    async def machine(self, backend: FakeBackend | None = None, **options: Any) -> Machine:
        """Start a broker, on a new disk if none is given."""
        if backend is None:
            backend = await self._stack.enter_async_context(fake_backend())
        options = {"interval": _NEVER, "hold": 2 * _NEVER, **options}
        timeout = options.pop("timeout", 10.0)

        def replica(layout: Any) -> S3Replica:
            made = self._server.options(self.prefix, timeout=timeout)
            return S3Replica(made, SaveOptions(**options), layout.store_id)

        store = DirectoryStore(backend.data_dir, replica=replica)
        return Machine(
            backend, await self._stack.enter_async_context(world(backend, workspaces=store))
        )

    def record(self, name: str, tenant: str = "default") -> CopyRecord:
        found = obstore.get(self.objects, f"{prefix_of(tenant, name)}record")
        return msgspec.json.decode(bytes(found.bytes()), type=CopyRecord)

    def pieces(self, name: str) -> set[str]:
        found = obstore.list(self.objects, f"{prefix_of('default', name)}pieces").collect()
        return {each["path"] for each in found}


@pytest.fixture
async def site(server: S3Server) -> AsyncIterator[Site]:
    async with spotless_backend(), AsyncExitStack() as stack:  # no task is left at the end
        yield Site(server, stack)


async def eventually(condition: Callable[[], object], what: str) -> None:
    """Wait for what a server does."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"{what} does not come about"
        await asyncio.sleep(0.02)


async def test_files_follow_to_another_machine(site: Site) -> None:
    """A session on another machine finds the files of an earlier one, and the other way round."""
    one, two = await site.machine(), await site.machine()
    first = await one.world.open(workspace="mine")
    data = os.urandom(PIECE + 7)
    (one.files(first) / "folder").mkdir()
    (one.files(first) / "folder" / "data").write_bytes(data)
    await one.close(first)
    second = await two.world.open(workspace="mine")
    assert (two.files(second) / "folder" / "data").read_bytes() == data
    assert second.workspace_warning is None
    (two.files(second) / "folder" / "data").unlink()
    (two.files(second) / "new").write_text("new")
    await two.close(second)
    third = await one.world.open(workspace="mine")  # what is cached there is too old
    assert sorted(path.name for path in one.files(third).iterdir()) == ["folder", "new"]
    assert list((one.files(third) / "folder").iterdir()) == []
    await one.close(third)
    assert len(site.pieces("mine")) == 1


async def test_only_changes_travel(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A changed byte uploads one piece; an unchanged workspace none; a cached one is not downloaded."""
    one = await site.machine()
    session = await one.world.open(workspace="mine")
    for name in ("a", "b"):
        (one.files(session) / name).write_bytes(os.urandom(2 * PIECE))
    await one.close(session)
    sent: list[str] = []
    fetched: list[str] = []
    put, get = Bucket.put, Bucket.get

    async def counting_put(self: Bucket, key: str, data: bytes) -> None:
        sent.append(key)
        await put(self, key, data)

    async def counting_get(self: Bucket, key: str) -> Any:
        fetched.append(key)
        return await get(self, key)

    monkeypatch.setattr(Bucket, "put", counting_put)
    monkeypatch.setattr(Bucket, "get", counting_get)
    session = await one.world.open(workspace="mine")
    await one.close(session)
    assert sent == [] and not [key for key in fetched if "/pieces/" in key]
    session = await one.world.open(workspace="mine")
    with (one.files(session) / "a").open("r+b") as file:
        file.write(b"changed")
    await one.close(session)
    assert ["/pieces/" in key for key in sent].count(True) == 1
    assert len(site.pieces("mine")) == 4  # the replaced piece is removed


async def test_one_machine_at_a_time(site: Site) -> None:
    """A workspace that a session on another machine has can be neither opened nor deleted nor read."""
    one, two = await site.machine(), await site.machine()
    session = await one.world.open("first", workspace="mine")
    (one.files(session) / "file").write_text("x")
    with pytest.raises(Conflict, match="session first"):
        await two.world.open("second", workspace="mine")
    await one.close(session)
    again = await one.world.open("third", workspace="mine")
    with pytest.raises(Conflict, match="session third"):
        await two.world.service.workspaces.delete("default", "mine")
    with pytest.raises(Conflict, match="session third"):
        async with two.world.service.workspaces.files.open("default", "mine", "file"):
            pass
    (found,) = await two.world.service.workspaces.list("default")
    assert (found.name, found.session_id, found.expires_at) == ("mine", "third", None)
    await one.close(again)
    assert await two.world.open(workspace="mine")


async def test_what_was_not_saved_is_told(site: Site) -> None:
    """After the loss of a machine the last saved files are there, and the session says what is lost."""
    one = await site.machine(interval=0.05, hold=0.5)
    two = await site.machine()
    session = await one.world.open("first", workspace="mine")
    (one.files(session) / "saved").write_text("x")
    await eventually(lambda: site.record("mine").manifest, "a save")
    holding = session._lease.workspace._holding
    await holding.pause()  # the machine is gone
    saved = site.record("mine").manifest
    (one.files(session) / "unsaved").write_text("x")

    async def opened() -> Any:
        while True:
            try:
                return await two.world.open("second", workspace="mine")
            except Conflict:  # its time has not run out
                await asyncio.sleep(0.05)

    async with asyncio.timeout(60):
        later = await opened()
    assert [path.name for path in two.files(later).iterdir()] == ["saved"]
    assert "session first was lost" in later.workspace_warning
    assert site.record("mine").manifest == saved
    # The first machine was only slow: it may not write any more, and its user is told as well.
    (two.files(later) / "second").write_text("x")
    holding.keep_saving(one.files(session))
    await eventually(lambda: session.workspace_warning, "a warning")
    assert "taken the workspace over" in session.workspace_warning
    await one.close(session)
    await two.close(later)
    third = await two.world.open(workspace="mine")
    assert {path.name for path in two.files(third).iterdir()} == {"saved", "second"}
    assert third.workspace_warning is None


async def test_a_broker_that_comes_back_has_lost_nothing(site: Site) -> None:
    """The next broker on the same disk goes on with files that were never saved."""
    one = await site.machine()
    session = await one.world.open("first", workspace="mine")
    (one.files(session) / "unsaved").write_text("x")
    store = one.world.service.workspaces
    assert isinstance(store, DirectoryStore)
    store._holdings.clear()  # nothing is saved at the end, as if the broker had been killed
    await one.close(session)
    assert site.record("mine").manifest == ""
    again = await one.world.open("second", workspace="mine")
    assert (one.files(again) / "unsaved").read_text() == "x"
    assert again.workspace_warning is None
    await one.close(again)
    assert len(site.pieces("mine")) == 1


@pytest.mark.long
async def test_an_outage_of_the_server_loses_nothing(
    server: S3Server, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the server no workspace is opened; running sessions keep their files, which are saved
    later."""
    monkeypatch.setattr(directory_store, "_REAP_S", 0.2)
    monkeypatch.setattr(bucket, "RETRIES", 0)
    one = await site.machine(interval=0.1, hold=_NEVER, timeout=1.0)
    session = await one.world.open(workspace="mine")
    await eventually(lambda: site.record("mine").manifest, "a save")
    server.stop()
    try:
        (one.files(session) / "file").write_text("x")
        await eventually(lambda: session.workspace_warning, "a warning")
        assert "could not be saved" in session.workspace_warning
        with pytest.raises(Unavailable, match="does not answer"):
            await one.world.open(workspace="other")
        await one.close(session)
    finally:
        server.start()
    await eventually(lambda: site.pieces("mine"), "the late save")
    await eventually(lambda: not site.record("mine").holder, "the end of the holding")
    two = await site.machine()
    later = await two.world.open(workspace="mine")
    assert (two.files(later) / "file").read_text() == "x"


async def test_files_without_a_session(site: Site) -> None:
    """Files that are written without a session on one machine are read on another one."""
    one, two = await site.machine(), await site.machine()

    async def data() -> AsyncIterator[bytes]:
        yield b"content"

    await one.world.service.workspaces.files.write(
        "default", "mine", "a/file", data(), Quota(10**6, 100)
    )
    await eventually(lambda: not one.world.workspaces_in_use, "the save")
    files = two.world.service.workspaces.files
    async with files.open("default", "mine", "a/file") as file:
        assert [chunk async for chunk in file.chunks(0, 100)] == [b"content"]
    listed = await files.list("default", "mine", "", recursive=True)
    assert [entry.path for entry in listed.entries] == ["a", "a/file"]
    await eventually(lambda: not two.world.workspaces_in_use, "the end of the reading")
    assert site.record("mine").holder == ""
    with pytest.raises(NotFound):
        async with files.open("default", "other", "file"):
            pass
    await two.world.service.workspaces.delete("default", "mine")
    assert obstore.list(site.objects, prefix_of("default", "mine")).collect() == []
    with pytest.raises(NotFound):  # also where a copy was cached
        await one.world.service.workspaces.files.list("default", "mine", "", recursive=True)


async def test_expired_copies_are_removed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A workspace that was not used for its retention is removed from the bucket; another stays."""
    monkeypatch.setattr(directory_store, "_REAP_S", 0.1)
    monkeypatch.setattr(s3_replica, "_REAP_S", 0.1)
    one, two = await site.machine(), await site.machine()
    for name, retention in (("short", 0.2), ("long", None)):
        session = await one.world.open(workspace=name, workspace_retention=retention)
        (one.files(session) / "file").write_text(name)
        await one.close(session)
    gone = prefix_of("default", "short")
    await eventually(lambda: not obstore.list(site.objects, gone).collect(), "the removal")
    later = await two.world.open(workspace="long")
    assert (two.files(later) / "file").read_text() == "long"


async def test_not_kept_and_empty_ones_leave_nothing(site: Site) -> None:
    """A session without retention, or without files, leaves no object."""
    one = await site.machine()
    session = await one.world.open(workspace_retention=0)
    (one.files(session) / "file").write_text("x")
    await one.close(session)
    await one.close(await one.world.open(workspace="empty"))
    assert obstore.list(site.objects).collect() == []


async def test_too_much_is_told(site: Site) -> None:
    """Files that are more than the bound are not saved, and the session says so."""
    one = await site.machine(interval=0.05, hold=_NEVER, max_size=1000)
    session = await one.world.open(workspace="mine")
    (one.files(session) / "small").write_bytes(bytes(10))
    with (one.files(session) / "sparse").open("wb") as file:
        file.truncate(10**12)
    await eventually(lambda: session.workspace_warning, "a warning")
    assert "1 files are not saved" in session.workspace_warning


async def test_two_machines_at_the_same_moment(site: Site) -> None:
    """Of many that open a workspace in the same moment, exactly one gets it."""
    machines = [await site.machine() for _ in range(3)]
    opened = await asyncio.gather(
        *(each.world.open(workspace="mine") for each in machines), return_exceptions=True
    )
    assert sorted(isinstance(each, Conflict) for each in opened) == [False, True, True]


@pytest.mark.parametrize("conditional", [True, False])
async def test_a_write_on_a_condition(server: S3Server, site: Site, conditional: bool) -> None:
    """An object is replaced only if it is as it was read."""
    own = Bucket(server.options(site.prefix, conditional_writes=conditional))
    version = await own.replace("record", b"one", None)
    for wrong in (None, '"other"'):
        with pytest.raises(Changed):
            await own.replace("record", b"two", wrong)
    later = await own.replace("record", b"three", version)
    assert await own.get("record") == (b"three", later)
    with pytest.raises(Changed):
        await own.replace("record", b"four", version)


async def test_wrong_credentials_are_told(server: S3Server, site: Site) -> None:
    """A wrong key is an error that says what the server said, and not the key."""
    own = Bucket(server.options(site.prefix, secret_key="wrong-secret"))
    with pytest.raises(Unavailable) as caught:
        await own.put("a", b"x")
    assert "wrong-secret" not in str(caught.value)


@pytest.mark.sandbox
@requires("bubblewrap")
@requires("the kernels' environment")
async def test_a_lost_machine(server: S3Server) -> None:
    """A cell on another machine finds the saved files of a lost one, and the session says what is lost.

    When the lost machine comes back, it does not overwrite them.
    """
    s3 = server.options(secrets.token_hex(4))
    settings = {
        "WORKSPACES__S3__BUCKET": s3.bucket,
        "WORKSPACES__S3__PREFIX": s3.prefix,
        "WORKSPACES__S3__ENDPOINT": s3.endpoint,
        "WORKSPACES__S3__ACCESS_KEY": s3.access_key,
        "WORKSPACES__S3__SECRET_KEY": s3.secret_key,
        "WORKSPACES__S3__INTERVAL": 0.2,
        "WORKSPACES__S3__HOLD": 3,
    }
    objects = server.store(s3.prefix)

    def is_saved(content: bytes) -> bool:
        """Whether the valid manifest has a file with this content; a piece alone may not be valid yet."""
        prefix = prefix_of("default", "mine")
        try:
            record = obstore.get(objects, f"{prefix}record").bytes()
            name = msgspec.json.decode(bytes(record), type=CopyRecord).manifest
            packed = obstore.get(objects, f"{prefix}manifests/{name}").bytes()
        except FileNotFoundError:
            return False
        return hashlib.sha256(content).digest() in _unpacked(bytes(packed)).digests

    with tempfile.TemporaryDirectory(prefix="kb-") as one, running_broker(**settings) as two:
        lost = BrokerProcess(Path(one), **settings)
        with lost.running():
            async with kernelbroker.connect(lost.url, lost.token) as client:
                session = await client.session(workspace="mine").open()
                await session.run("open('file', 'w').write('saved')")
                await eventually(lambda: is_saved(b"saved"), "a save")
                lost.kill()
            async with kernelbroker.connect(two.url, two.token) as client:

                async def opened() -> kernelbroker.Session:
                    while True:
                        try:
                            return await client.session(workspace="mine").open()
                        except kernelbroker.Conflict:  # its time has not run out
                            await asyncio.sleep(0.1)

                async with asyncio.timeout(60):
                    later = await opened()
                assert later.info is not None
                assert "what was changed later is lost" in (later.info.workspace_warning or "")
                result = await later.run(
                    "print(open('file').read()); open('file', 'w').write('new')"
                )
                assert result.stdout == "saved\n"
                lost.start()
                await later.close()
                async with client.session(workspace="mine") as third:
                    assert third.info is not None and third.info.workspace_warning is None
                    assert (await third.run("print(open('file').read())")).stdout == "new\n"
