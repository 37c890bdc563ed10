"""The files of sessions over HTTP, streamed in both directions."""

from __future__ import annotations

from typing import Literal

from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.messages import FileList
from tornado.web import stream_request_body

from ..service import files
from ..service.file_operations import file_operation
from .base import ApiHandler
from .file_transfer import BYTES, FilePaths, FileTransfer
from .openapi import operation


class Files(FilePaths, ApiHandler):
    @operation({200: FileList}, query={"path": str, "recursive": bool})
    async def get(self, session_id: str) -> None:
        """List a directory of the workspace."""
        session = await self.tenant.sessions.resolve(session_id)
        recursive = self.flag("recursive")
        self.reply(await files.list_(session, self.query("path") or "", recursive=recursive))


@stream_request_body
class OneFile(FileTransfer):
    """One file or directory."""

    # Download.

    @operation({200: BYTES, 206: BYTES})
    async def get(self, session_id: str, path: str) -> None:
        """Download a file, or a part of it (`Range`)."""
        session = await self.tenant.sessions.resolve(session_id)
        await self.send_file(path, files.read(session, path, part=self.part))

    @operation({200: None})
    async def head(self, session_id: str, path: str) -> None:
        """Get a file's size and type."""
        await self.get(session_id, path)

    # Upload.

    async def prepare(self) -> None:
        super().prepare()
        if self.request.method == "PUT":
            session = await self.tenant.sessions.resolve(self.path_kwargs["session_id"])
            path = self.path_kwargs["path"]
            self.receive(
                session.limits.max_file_bytes,
                file_operation(session, "upload", path),
                lambda data, length: files.write(session, path, data, length),
            )

    @operation({204: None}, body=BYTES)
    async def put(self, session_id: str, path: str) -> None:  # noqa: ARG002  used in `prepare`
        """Upload a file. Missing directories are created, an existing file is replaced."""
        await self.complete()

    # The rest.

    @operation({204: None}, query={"recursive": bool})
    async def delete(self, session_id: str, path: str) -> None:
        """Delete a file, or a directory with its content (`recursive=true`)."""
        session = await self.tenant.sessions.resolve(session_id)
        await files.delete(session, path, recursive=self.flag("recursive"))
        self.set_status(204)

    @operation({204: None}, query={"op": Literal["mkdir", "move"], "to": str})
    async def post(self, session_id: str, path: str) -> None:
        """Create a directory (`op=mkdir`), or move a file or directory (`op=move`)."""
        session = await self.tenant.sessions.resolve(session_id)
        match self.query("op"):
            case "mkdir":
                await files.make_directory(session, path)
            case "move":
                target = self.query("to")
                if target is None:
                    raise BadRequest("op=move needs the target path: add to=PATH")
                await files.move(session, path, target)
            case _:
                raise BadRequest("op must be mkdir or move")
        self.set_status(204)
