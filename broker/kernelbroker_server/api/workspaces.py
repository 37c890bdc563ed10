"""Workspaces over HTTP: list, get, make, delete, and the files of one."""

from __future__ import annotations

import ipaddress
from typing import Any

from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.messages import (
    FileList,
    WorkspaceDetails,
    WorkspaceInfo,
    WorkspaceList,
    WorkspaceOptions,
)
from tornado.web import stream_request_body

from ..workspaces.store import StoredWorkspace
from ..workspaces.stored_files import Bounds
from .base import ApiHandler
from .descriptions import utc_time
from .file_transfer import BYTES, FilePaths, FileTransfer
from .openapi import operation


class Workspaces(ApiHandler):
    @operation({200: WorkspaceList})
    async def get(self) -> None:
        """List the workspaces, least recently used first."""
        workspaces = await self.tenant.workspaces.list(self.tenant.name)
        infos = [WorkspaceInfo(**_fields(workspace)) for workspace in workspaces]
        self.reply(WorkspaceList(workspaces=infos))


class OneWorkspace(ApiHandler):
    @operation({200: WorkspaceDetails})
    async def get(self, workspace: str) -> None:
        """Get a workspace."""
        await self._reply(workspace)

    @operation({200: WorkspaceDetails, 201: WorkspaceDetails}, body=WorkspaceOptions)
    async def put(self, workspace: str) -> None:
        """Make a workspace, or change its options. The status is 201 if it is new."""
        options = self.body_as(WorkspaceOptions)
        if workspace.startswith("."):
            raise BadRequest("the name of a workspace does not begin with a dot")
        bounds = Bounds(options.max_size, options.retention)
        is_new = await self.tenant.workspace_files.make(workspace, bounds, options.layout)
        await self._reply(workspace, 201 if is_new else 200)

    @operation({204: None})
    async def delete(self, workspace: str) -> None:
        """Delete a workspace that no session uses."""
        await self.tenant.workspaces.delete(self.tenant.name, workspace)
        self.set_status(204)

    async def _reply(self, name: str, status: int = 200) -> None:
        details = WorkspaceDetails(**_fields(await self.tenant.workspace_files.get(name)))
        if self._comes_from_here():
            where = self.tenant.workspace_files.place(name)
            details.host_path, details.machine = where or (None, None)
        self.reply(details, status)

    def _comes_from_here(self) -> bool:
        """Whether the client is on this machine."""
        connection: Any = self.request.connection
        try:
            here = connection.stream.socket.getsockname()[0]
            address = ipaddress.ip_address(self.request.remote_ip or "")
        except (AttributeError, OSError, IndexError, ValueError):
            return False
        return address.is_loopback or self.request.remote_ip == here


class WorkspaceFiles(FilePaths, ApiHandler):
    @operation({200: FileList}, query={"path": str, "recursive": bool})
    async def get(self, workspace: str) -> None:
        """List a directory of the workspace."""
        files, recursive = self.tenant.workspace_files, self.flag("recursive")
        self.reply(await files.list(workspace, self.query("path") or "", recursive=recursive))


@stream_request_body
class WorkspaceFile(FileTransfer):
    """One file or directory."""

    @operation({200: BYTES, 206: BYTES})
    async def get(self, workspace: str, path: str) -> None:
        """Download a file, or a part of it (`Range`)."""
        reading = self.tenant.workspace_files.read(workspace, path, part=self.part)
        await self.send_file(path, reading)

    @operation({200: None})
    async def head(self, workspace: str, path: str) -> None:
        """Get a file's size and type."""
        await self.get(workspace, path)

    async def prepare(self) -> None:
        super().prepare()
        if self.request.method == "PUT":
            name, path = self.path_kwargs["workspace"], self.path_kwargs["path"]
            if name.startswith("."):
                raise BadRequest("the name of a workspace does not begin with a dot")
            files = self.tenant.workspace_files
            self.receive(
                files.max_file_bytes,
                files.operation("upload", name, path),
                lambda data, length: files.write(name, path, data, length),
            )

    @operation({204: None}, body=BYTES)
    async def put(self, workspace: str, path: str) -> None:  # noqa: ARG002  used in `prepare`
        """Upload a file. The workspace and missing directories are created, a file is replaced."""
        await self.complete()

    @operation({204: None}, query={"recursive": bool})
    async def delete(self, workspace: str, path: str) -> None:
        """Delete a file, or a directory with its content (`recursive=true`)."""
        files, recursive = self.tenant.workspace_files, self.flag("recursive")
        await files.delete(workspace, path, recursive=recursive)
        self.set_status(204)


def _fields(workspace: StoredWorkspace) -> dict[str, Any]:
    expires_at = workspace.expires_at
    in_use = workspace.session_id is not None
    return {
        "name": workspace.name,
        "size": None if in_use else workspace.usage.size,
        "files": None if in_use else workspace.usage.files,
        "last_used_at": utc_time(workspace.used_at),
        "expires_at": None if expires_at is None else utc_time(expires_at),
        "session_id": workspace.session_id,
    }
