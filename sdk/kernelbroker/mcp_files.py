"""The tools of `kernelbroker mcp` for files of this machine, below directories that its user named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .client import Broker
from .discovery import Address
from .http_request import call
from .protocol.errors import KernelBrokerError

_TIMEOUT_S = 30.0
_SESSION: dict[str, Any] = {
    "type": "string",
    "description": "The session, as an earlier result named it. Without one a new session is opened.",
}
_OUTPUT: dict[str, Any] = {
    "type": "object",
    "properties": {
        "session_id": {"type": "string"},
        "path": {"type": "string"},
        "local_path": {"type": "string"},
        "size": {"type": "integer"},
    },
    "required": ["session_id", "path", "local_path", "size"],
}


class Refused(Exception):
    """A call cannot be carried out; the message is for the model."""


class LocalFiles:
    """Copies files between this machine and the workspaces of sessions.

    Args:
        roots: the directories below which files may be read and written. Without any there are no tools.
    """

    def __init__(self, broker: Broker, address: Address, roots: Sequence[Path]) -> None:
        self._broker = broker
        self._address = address
        self._roots = [Path(os.path.realpath(root)) for root in roots]
        self.tools = {"upload_file": self._upload, "download_file": self._download} if roots else {}

    @property
    def definitions(self) -> list[dict[str, Any]]:
        """The tools' definitions."""
        if not self._roots:
            return []
        where = " or ".join(map(str, self._roots))
        local = {"type": "string", "description": f"A file of this machine, below {where}."}
        remote = {"type": "string", "description": "In the workspace, relative to /data."}
        return [
            _definition(
                "upload_file",
                "Upload a file",
                "Copy a file of the person's machine into the session's workspace.",
                {
                    "local_path": local,
                    "path": {**remote, "description": "In the workspace; uploads/NAME if absent."},
                    "session_id": _SESSION,
                },
                ["local_path"],
                idempotent=True,
            ),
            _definition(
                "download_file",
                "Download a file",
                "Copy a file of the session's workspace to the person's machine.",
                {"path": remote, "local_path": local, "session_id": _SESSION},
                ["path", "local_path", "session_id"],
                destructive=True,
                idempotent=True,
            ),
        ]

    async def call(self, name: str, arguments: Any) -> dict[str, Any]:
        """Call a tool; returns the result of `tools/call`. A failure is an error of the tool."""
        session_id = arguments.get("session_id") if isinstance(arguments, dict) else None
        try:
            if not isinstance(arguments, dict) or not all(
                isinstance(value, str) for value in arguments.values()
            ):
                raise Refused("the arguments must be texts")
            output = await self.tools[name](arguments)
        except (Refused, KernelBrokerError, OSError) as exc:
            structured = {"error": {"name": "refused", "message": str(exc)}}
            if isinstance(session_id, str):
                structured["session_id"] = session_id  # type: ignore[assignment]
            return _result(str(exc), structured, is_error=True)
        text = f'Copied {output["size"]:,} bytes. session_id: "{output["session_id"]}"'
        return _result(text, output)

    async def _upload(self, arguments: dict[str, str]) -> dict[str, Any]:
        local = self._inside(_required(arguments, "local_path"))
        if not local.is_file():
            raise Refused(f"{local} is not a file")
        path = arguments.get("path") or f"uploads/{local.name}"
        session_id = await self._open(arguments.get("session_id"))
        async with self._broker.session(session_id, keep=True) as session:
            await session.files.upload(local, path)
            return _output(session.session_id, path, local)

    async def _download(self, arguments: dict[str, str]) -> dict[str, Any]:
        local = self._inside(_required(arguments, "local_path"))
        path = _required(arguments, "path")
        session_id = await self._open(_required(arguments, "session_id"))
        local.parent.mkdir(parents=True, exist_ok=True)
        async with self._broker.session(session_id, keep=True) as session:
            await session.files.download(path.removeprefix("/data/"), local)
            return _output(session.session_id, path, local)

    async def _open(self, session_id: str | None) -> str | None:
        """Check that a named session is open; the SDK would open one with that id. Raises RequestError."""
        if session_id is not None:
            path = f"/api/v1/sessions/{session_id}"
            if not session_id.replace("-", "").replace("_", "").replace(".", "").isalnum():
                raise Refused(f"{session_id!r} is not the id of a session")
            await call(self._address, "GET", path, _TIMEOUT_S)
        return session_id

    def _inside(self, path: str) -> Path:
        """The file that a path leads to, links followed. A relative path is below the first root.

        Raises:
            Refused: it is not below one of the roots.
        """
        real = Path(os.path.realpath(self._roots[0] / path))
        if not any(real.is_relative_to(root) and real != root for root in self._roots):
            where = ", ".join(map(str, self._roots))
            raise Refused(
                f"{path} is not below {where}. The person who started `kernelbroker mcp` can name more "
                "directories with --root"
            )
        return real


def _required(arguments: dict[str, str], name: str) -> str:
    if not (value := arguments.get(name)):
        raise Refused(f"the argument {name} is missing")
    return value


def _output(session_id: str, path: str, local: Path) -> dict[str, Any]:
    size = local.stat().st_size
    return {"session_id": session_id, "path": path, "local_path": str(local), "size": size}


def _result(text: str, structured: dict[str, Any], *, is_error: bool = False) -> dict[str, Any]:
    return {
        "content": [{"type": "text", "text": text}],
        "structuredContent": structured,
        "isError": is_error,
        "resultType": "complete",
    }


def _definition(
    name: str,
    title: str,
    description: str,
    properties: dict[str, Any],
    required: list[str],
    *,
    destructive: bool = False,
    idempotent: bool = False,
) -> dict[str, Any]:
    return {
        "name": name,
        "title": title,
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        "outputSchema": _OUTPUT,
        "annotations": {
            "readOnlyHint": False,
            "destructiveHint": destructive,
            "idempotentHint": idempotent,
            "openWorldHint": False,
        },
    }
