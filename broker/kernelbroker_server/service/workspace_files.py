"""The files of a workspace by its name: of the session that has it, or else of the store.

The rules and the errors are the same in both cases. If a session opens or closes meanwhile, the call
goes to where the files are then.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterator,
)
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import TypeVar

from kernelbroker.protocol.errors import NotFound, SessionGone, Unavailable
from kernelbroker.protocol.machine import machine_id
from kernelbroker.protocol.messages import FileList, WorkspaceLayout

from ..backends.sandbox_record import boot_id
from ..sessions.registry import Registry
from ..sessions.session import Session
from ..telemetry.events import FileOperation, Observer, SessionEmitter
from ..workspaces.directory_plans import plan_of
from ..workspaces.layout import WorkspaceInUse
from ..workspaces.quota import Quota
from ..workspaces.store import StoredWorkspace, WorkspaceStore
from ..workspaces.stored_files import Bounds, ReadableFile
from . import files
from .file_operations import Progress, report
from .files import Download

T = TypeVar("T")

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_BEGUN_BYTES = 1024**2
_TRIES = 3
"""How often a call follows the files from session to store and back."""


class WorkspaceFiles:
    """The files of one tenant's workspaces.

    Attributes:
        max_file_bytes: the limit of a single file.
    """

    def __init__(self, registry: Registry, store: WorkspaceStore, observer: Observer) -> None:
        self.max_file_bytes = registry.limits.max_file_bytes
        self._registry = registry
        self._tenant = registry.tenant.name
        self._store = store
        self._observer = observer

    @property
    def _quota(self) -> Quota:
        """The quota of workspaces that no session has: that of the default template, or the largest."""
        specs = {name: pool.spec for name, pool in self._registry.pools.items()}
        if "default" in specs:
            return Quota.of(specs["default"].limits)
        quotas = [Quota.of(spec.limits) for spec in specs.values()]
        return max(quotas, key=lambda quota: quota.size, default=Quota(0, 0))

    async def get(self, name: str) -> StoredWorkspace:
        """Return a workspace. Raises NotFound."""
        for workspace in await self._store.list(self._tenant):
            if workspace.name == name:
                return workspace
        raise NotFound(f"there is no workspace {name}")

    def place(self, name: str) -> tuple[str, str] | None:
        """The path of a workspace on this machine, and the id of the machine; None without a path."""
        path = self._store.host_path(self._tenant, name)
        return None if path is None else (str(path), machine_id(boot_id().encode()))

    async def make(self, name: str, bounds: Bounds, layout: WorkspaceLayout | None) -> bool:
        """Make a workspace with a layout; returns whether it is new.

        If a session has the workspace, the layout is made in its sandbox, and the bounds stay as they are.

        Raises:
            Conflict: something else has a name of the layout.
            TooLarge, Unavailable
        """
        plan = plan_of(layout)

        async def in_session(session: Session) -> bool:
            if plan is not None:
                await files.follow(session, plan)
            return False

        async def in_store() -> bool:
            return await self._store.files.make(self._tenant, name, bounds, plan, self._quota)

        return await self._where_it_is(name, in_session, in_store)

    @contextlib.asynccontextmanager
    async def read(
        self, name: str, path: str, *, part: str | None = None
    ) -> AsyncIterator[Download]:
        """Read a file. The arguments and errors are those of `files.read`."""
        async with AsyncExitStack() as stack:

            async def in_session(session: Session) -> Download:
                reading = _begun(files.read(session, path, part=part))
                return await stack.enter_async_context(reading)

            async def in_store() -> Download:
                progress = stack.enter_context(self.operation("download", name, path))
                opening = self._store.files.open(self._tenant, name, path)
                return _download(await stack.enter_async_context(opening), part, progress)

            yield await self._where_it_is(name, in_session, in_store)

    async def write(
        self, name: str, path: str, data: AsyncIterable[bytes], length: int | None
    ) -> None:
        """Create or replace a file. Makes the workspace if there is none. Raises as `files.write`."""
        started = False

        async def counted(progress: Progress) -> AsyncGenerator[bytes, None]:
            nonlocal started
            started = True
            async for chunk in data:
                progress.size += len(chunk)
                yield chunk

        async def in_session(session: Session) -> None:
            await files.write(session, path, counted(Progress()), length)

        async def in_store() -> None:
            with self.operation("upload", name, path) as progress:
                content = counted(progress)
                await self._store.files.write(self._tenant, name, path, content, self._quota)

        await self._where_it_is(name, in_session, in_store, may_repeat=lambda: not started)

    async def list(self, name: str, path: str, *, recursive: bool) -> FileList:
        """List a directory. Raises as `files.list_`."""

        async def in_session(session: Session) -> FileList:
            return await files.list_(session, path, recursive=recursive)

        async def in_store() -> FileList:
            return await self._store.files.list(self._tenant, name, path, recursive=recursive)

        return await self._where_it_is(name, in_session, in_store)

    async def delete(self, name: str, path: str, *, recursive: bool) -> None:
        """Delete a file or a directory. Raises as `files.delete`."""

        async def in_session(session: Session) -> None:
            await files.delete(session, path, recursive=recursive)

        async def in_store() -> None:
            with self.operation("delete", name, path):
                await self._store.files.delete(self._tenant, name, path, recursive=recursive)

        await self._where_it_is(name, in_session, in_store)

    @contextlib.contextmanager
    def operation(self, operation: FileOperation, name: str, path: str) -> Iterator[Progress]:
        """Emit one event when the block ends; see `file_operation`. Nothing for a call that is repeated."""
        emit = SessionEmitter(self._observer, self._tenant, "", "")
        with report(emit, operation, path, workspace=name, unless=WorkspaceInUse) as progress:
            yield progress

    async def _where_it_is(
        self,
        name: str,
        in_session: Callable[[Session], Awaitable[T]],
        in_store: Callable[[], Awaitable[T]],
        may_repeat: Callable[[], bool] = lambda: True,
    ) -> T:
        for tries_left in reversed(range(_TRIES)):
            session = await self._registry.holder_of(name)
            try:
                return await (in_store() if session is None else in_session(session))
            except (WorkspaceInUse, SessionGone):
                if not tries_left or not may_repeat():
                    raise
        raise AssertionError("the last try raises")


class _StoredBody:
    """The content of a file, or of a part of it."""

    def __init__(self, file: ReadableFile, start: int, size: int, progress: Progress) -> None:
        self._file, self._start, self._size = file, start, size
        self._progress = progress

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        async for chunk in self._file.chunks(self._start, self._size):
            self._progress.size += len(chunk)
            yield chunk
        if self._progress.size < self._size:
            raise Unavailable("the file became shorter while it was read; try again")


@contextlib.asynccontextmanager
async def _begun(reading: AbstractAsyncContextManager[Download]) -> AsyncIterator[Download]:
    """A download whose beginning has come: until then, it can be asked for elsewhere."""
    async with reading as download:
        rest, first = download.body.chunks(), list[bytes]()
        while sum(map(len, first)) < min(_BEGUN_BYTES, download.size):
            first.append(await anext(rest))
        yield dataclasses.replace(download, body=_BegunBody(first, rest))


class _BegunBody:
    """The content of a file whose first pieces have come."""

    def __init__(self, first: list[bytes], rest: AsyncGenerator[bytes, None]) -> None:
        self._first, self._rest = first, rest

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for chunk in self._first:
            yield chunk
        async with contextlib.aclosing(self._rest):
            async for chunk in self._rest:
                yield chunk


def _download(file: ReadableFile, part: str | None, progress: Progress) -> Download:
    """A file as an answer. An invalid Range is ignored (RFC 9110, section 14)."""
    first, last = 0, file.size - 1
    found = _RANGE.fullmatch(part or "")
    status, content_range = 200, None
    if found and any(found.groups()):
        if found[1]:
            first = int(found[1])
            last = min(last, int(found[2])) if found[2] else last
        else:
            first = max(0, file.size - int(found[2]))
        if found[1] and found[2] and int(found[2]) < first:
            first, last = 0, file.size - 1
        elif first >= file.size:
            status, content_range, first, last = 416, f"bytes */{file.size}", 0, -1
        else:
            status, content_range = 206, f"bytes {first}-{last}/{file.size}"
    size = last - first + 1
    return Download(status, size, content_range, _StoredBody(file, first, size, progress))
