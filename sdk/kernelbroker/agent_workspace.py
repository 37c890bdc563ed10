"""The files of an agent, which are there before, between and after its sessions.

    workspace = AgentWorkspace("report", layout="agent")
    await workspace.write_file("data/sales.csv", "month,total\\n1,20\\n")
    async with kernelbroker.connect() as broker, broker.session(workspace="report") as session:
        await session.run("open('output/total.txt', 'w').write('20')")
        print(await workspace.read_file("output/total.txt"))
    await workspace.cleanup()

While a session has the workspace, its sandbox serves the files; otherwise the broker does.
"""

from __future__ import annotations

import asyncio
import os
import re
from contextlib import suppress
from pathlib import Path, PurePosixPath
from types import TracebackType
from urllib.parse import quote

import msgspec

from .client import Broker, connect
from .files import Files
from .http_request import call
from .loop_lock import LoopLock
from .protocol.codec import encode
from .protocol.errors import BadRequest, KernelBrokerError, NotFound
from .protocol.machine import BOOT_ID, machine_id
from .protocol.messages import WorkspaceDetails, WorkspaceLayout, WorkspaceOptions

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_CONTAINER_PATH = PurePosixPath("/data")


class NotOnThisMachine(KernelBrokerError):
    """The broker is on another machine, or its files are at no path of this one."""


class AgentWorkspace:
    """A workspace by its name. Sessions use it as `broker.session(workspace=NAME)`.

    The broker makes it with the first call that writes, or with `async with`, and removes it when nothing
    has used it for `ttl_hours`. Paths are relative to the workspace; `..`, absolute paths and links are
    refused.

    Args:
        name: 1 to 64 letters, digits, `_`, `.` and `-`, not beginning with a dot.
        broker: what `kernelbroker.connect` returns; a new one if not given.
        max_size_mb: what its files may hold together, in MiB. The broker may allow less.
        ttl_hours: how long it is kept after its last use. The broker may keep it shorter.
        layout: directories and files that it gets where they are missing: `agent` or `analysis`.

    Raises:
        ValueError: an argument is not valid.
    """

    def __init__(
        self,
        name: str,
        broker: Broker | None = None,
        *,
        max_size_mb: float = 1024,
        ttl_hours: float = 24.0,
        layout: WorkspaceLayout | None = None,
    ) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(
                f"{name!r} is not a name of a workspace: use 1 to 64 letters, digits, '_', '.' and '-'"
            )
        if max_size_mb <= 0 or ttl_hours <= 0:
            raise ValueError("max_size_mb and ttl_hours must be greater than 0")
        if layout not in (None, "agent", "analysis"):
            raise ValueError("layout must be 'agent', 'analysis' or None")
        self.name = name
        self._broker = broker or connect()
        self._options = WorkspaceOptions(
            max_size=max(1, int(max_size_mb * 2**20)), retention=ttl_hours * 3600, layout=layout
        )
        self._path = f"/api/v1/workspaces/{quote(name, safe='')}"
        self._making = LoopLock()
        self._is_made = False

    async def open(self) -> AgentWorkspace:
        """Make the workspace, if there is none, and its layout. Other calls do this when it is needed.

        Raises:
            KernelBrokerError: the broker refused, or cannot be reached.
        """
        await self._made()
        return self

    async def write_file(self, relative: str, content: str | bytes) -> str:
        """Create or replace a file, and its parents. Text is written as UTF-8. Returns `relative`.

        Raises:
            TooLarge: it does not fit into the workspace.
            Conflict: `relative` is a directory, or a part of it is no directory.
            BadRequest: `relative` leads out of the workspace.
        """
        data = content.encode() if isinstance(content, str) else bytes(content)
        relative = _checked(relative)
        await self._made()
        await self._files.write(relative, data)
        return relative

    async def read_file(self, relative: str) -> bytes:
        """Return the content of a file.

        Raises:
            NotFound: there is no such file.
            Conflict: it is a directory, a link or another kind of entry.
            BadRequest: `relative` leads out of the workspace.
        """
        return await self._files.read(_checked(relative))

    async def list_files(self, relative: str = "") -> list[str]:
        """Return the paths of all files below a directory, sorted; empty if there is no such directory.

        The paths are relative to the workspace, as `read_file` takes them. At most 10,000 entries, with
        directories, are looked at.
        """
        relative = _checked(relative)
        try:
            found = await self._files.list(relative, recursive=True)
        except NotFound:
            return []
        return [each.path for each in found if each.kind == "file"]

    async def delete_file(self, relative: str) -> None:
        """Remove a file, or a directory with all that it holds. Raises as `read_file`."""
        await self._files.delete(_checked(relative), recursive=True)

    async def get_host_path(self, relative: str = "") -> Path:
        """Return the path on this machine. docs/workspaces.md says what to take care of.

        Raises:
            NotOnThisMachine: the broker is on another machine, or the files are at no path of this one.
        """
        relative = _checked(relative)
        await self._made()
        details = await self._details()
        if details.host_path is None or details.machine != await asyncio.to_thread(_this_machine):
            raise NotOnThisMachine(
                f"the broker at {self._broker.url} is not on this machine: use read_file and write_file"
            )
        path = Path(details.host_path)
        if not await asyncio.to_thread(_can_be_opened, path):
            raise NotOnThisMachine(
                f"{path} cannot be opened here: the broker has its own file system, or another user. Use "
                "read_file and write_file"
            )
        return path / relative if relative else path

    def get_container_path(self, relative: str = "") -> str:
        """Return the path inside the sandbox, where cells find the file."""
        return str(_CONTAINER_PATH / _checked(relative))

    async def get_volume_mount(self) -> dict[str, dict[str, str]]:
        """Return the mount for a container of your own, as docker-py's `volumes` takes it.

        The files are at this path while no session has the workspace. A container that runs on while a
        session opens or ends keeps the directory of before.

        Raises:
            NotOnThisMachine: as `get_host_path`.
        """
        path = await self.get_host_path()
        return {str(path): {"bind": str(_CONTAINER_PATH), "mode": "rw"}}

    async def cleanup(self) -> None:
        """Remove the workspace with all files. It may have been removed already.

        Raises:
            Conflict: a session has it; close the session first.
        """
        self._is_made = False
        with suppress(NotFound):
            await self._broker.delete_workspace(self.name)

    async def __aenter__(self) -> AgentWorkspace:
        return await self.open()

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """The files stay; `cleanup` removes them."""

    @property
    def _files(self) -> Files:
        async def path() -> str:
            return self._path

        return Files(self._broker.address, self._broker.timeout, path)

    async def _made(self) -> None:
        async with self._making.current:
            if not self._is_made:
                body = encode(self._options)
                await call(self._broker.address, "PUT", self._path, self._broker.timeout, body)
                self._is_made = True

    async def _details(self) -> WorkspaceDetails:
        answer = await call(self._broker.address, "GET", self._path, self._broker.timeout)
        return msgspec.convert(answer, WorkspaceDetails)


def _checked(relative: str) -> str:
    path = PurePosixPath(relative)
    if path.is_absolute() or ".." in path.parts or "\0" in relative:
        raise BadRequest(
            f"{relative!r} is not a path in the workspace: give it without '..' and '/'"
        )
    return relative


def _this_machine() -> str | None:
    try:
        return machine_id(Path(BOOT_ID).read_bytes())
    except OSError:
        return None


def _can_be_opened(path: Path) -> bool:
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
    except OSError:
        return False
    return True
