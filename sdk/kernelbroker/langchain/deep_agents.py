"""A backend of `deepagents` on a session: its file tools and its shell work in the sandbox."""

from __future__ import annotations

import shlex
from uuid import uuid4

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from ..client import Broker
from ..protocol.errors import BadRequest, Conflict, ConnectionLost, KernelBrokerError, NotFound
from ..protocol.events import Result, Stderr, Stdout
from ..session import Session
from .sessions import opened, run_sync, session_id_of

_TIMED_OUT = 124
"""The exit status of a command that ran too long, as that of timeout(1)."""


class KernelBrokerSandbox(BaseSandbox):
    """The sandbox of one session. Any thread may call.

    Args:
        session: its id, which is opened if it is not open, or the session.
    """

    def __init__(self, broker: Broker, session: str | Session) -> None:
        self._broker = broker
        is_session = isinstance(session, Session)
        self._id = session.session_id if is_session else session_id_of(str(session))  # type: ignore[union-attr]

    @property
    def id(self) -> str:
        return self._id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command in /data. The output is that of the command; 124 says that it timed out."""
        return run_sync(self._execute(command, timeout))

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return run_sync(self._upload(files))

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return run_sync(self._download(paths))

    async def _execute(self, command: str, timeout: float | None) -> ExecuteResponse:
        pieces: list[str] = []
        async with opened(self._broker, self._id) as session:
            async for event in session.stream(command, language="shell", timeout=timeout or None):
                match event:
                    case Stdout(content=text) | Stderr(content=text):
                        pieces.append(text)
                    case Result() as result:
                        return _response("".join(pieces), result)
        raise ConnectionLost("the stream of the command has ended without a result")

    async def _upload(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        answers = []
        async with opened(self._broker, self._id) as session:
            for path, content in files:
                try:
                    await _write(session, path, content)
                    answers.append(FileUploadResponse(path))
                except KernelBrokerError as exc:
                    answers.append(FileUploadResponse(path, error=_error(exc)))
        return answers

    async def _download(self, paths: list[str]) -> list[FileDownloadResponse]:
        answers = []
        async with opened(self._broker, self._id) as session:
            for path in paths:
                try:
                    answers.append(FileDownloadResponse(path, await _read(session, path)))
                except KernelBrokerError as exc:
                    answers.append(FileDownloadResponse(path, error=_error(exc)))
        return answers


def _response(output: str, result: Result) -> ExecuteResponse:
    """What the program printed, without the kernel's line about its status."""
    detail, code = result.error_detail, result.exit_code
    if detail is not None:
        told = "\n".join(detail.traceback)
        output = output.removesuffix(f"{told}\n").removesuffix(told)
        if code is None:  # interrupted, or the kernel died
            code = _TIMED_OUT if detail.cause == "timeout" else None
            output += result.error or ""
    return ExecuteResponse(output, code, result.truncated is not None)


async def _write(session: Session, path: str, content: bytes) -> None:
    """Write a file. Transfers reach only /data: for other places a file there is moved."""
    _expect_absolute(path)
    if (inside := _in_workspace(path)) is not None:
        await session.files.write(inside, content)
        return
    passing = f".transfer-{uuid4().hex}"
    await session.files.write(passing, content)
    target = shlex.quote(path)
    moved = f'mkdir -p "$(dirname -- {target})" && mv -f -- /data/{passing} {target}'
    try:
        await _shell(session, moved, path)
    except KernelBrokerError:
        await session.files.delete(passing)
        raise


async def _read(session: Session, path: str) -> bytes:
    _expect_absolute(path)
    if (inside := _in_workspace(path)) is not None:
        return await session.files.read(inside)
    passing = f".transfer-{uuid4().hex}"
    await _shell(session, f"cp -- {shlex.quote(path)} /data/{passing}", path)
    try:
        return await session.files.read(passing)
    finally:
        await session.files.delete(passing)


async def _shell(session: Session, command: str, path: str) -> None:
    result = await session.run(command, language="shell")
    if not result.success:
        is_missing = "No such file" in result.text
        raise NotFound(f"there is no file {path}") if is_missing else BadRequest(result.text)


def _in_workspace(path: str) -> str | None:
    """The path relative to /data, or None if it is elsewhere."""
    return path.removeprefix("/data/").lstrip("/") if path.startswith("/data/") else None


def _expect_absolute(path: str) -> None:
    if not path.startswith("/"):
        raise BadRequest(f"{path}: the path must be absolute")


def _error(error: KernelBrokerError) -> str:
    match error:
        case NotFound():
            return "file_not_found"
        case Conflict():
            return "is_directory" if "directory" in str(error) else "permission_denied"
        case BadRequest():
            return "invalid_path"
    return str(error)
