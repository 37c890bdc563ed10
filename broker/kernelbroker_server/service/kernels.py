"""Use cases of Jupyter's clients: a session is a kernel, and its kernel's messages are theirs."""

from __future__ import annotations

import contextlib
import re
import uuid
from collections.abc import Callable
from typing import Any

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import BadRequest, NotFound, ProtocolError, Unavailable
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel.contract import METADATA_KEY

from ..kernels.channel import ChannelClosed
from ..kernels.framing import CONTENT_PART, METADATA_PART, RequestHeader, join_parts, split_frame
from ..kernels.requests import NotebookCell, notebook_options
from ..sessions.session import Session
from .executions import Executions
from .kernel_requests import expect_no_cell, expect_no_code
from .sessions import Sessions

_KERNEL_ID = re.compile(r"\w+-\w+-\w+-\w+-\w+", re.ASCII)
"""The ids that Jupyter's servers accept in a path."""
_LONGEST_ID = 64
_NAMESPACE = uuid.UUID("7b0f2f3e-3f0a-5c8e-9a55-6b3c1f1f6c1d")


class _CellContent(msgspec.Struct):
    """The content of an `execute_request`."""

    code: str
    silent: bool = False
    allow_stdin: bool = False
    stop_on_error: bool = True
    user_expressions: dict[str, Any] = {}


class _ReplyContent(msgspec.Struct):
    """The content of an `execute_reply`."""

    status: str = ""


class _ShutdownContent(msgspec.Struct):
    """The content of a `shutdown_request`."""

    restart: bool = False


def kernel_id(session_id: str) -> str:
    """Return the id under which Jupyter's clients know a session."""
    if _KERNEL_ID.fullmatch(session_id):
        return session_id
    return str(uuid.uuid5(_NAMESPACE, session_id))


def new_kernel_id(asked: str | None) -> str:
    """Return the id of a new kernel: the one that the client has chosen, else a random one.

    Raises:
        BadRequest: it is no id that Jupyter's servers accept.
    """
    if asked is None:
        return str(uuid.uuid4())
    if not _KERNEL_ID.fullmatch(asked) or len(asked) > _LONGEST_ID:
        raise BadRequest(
            "kernel_id must be five groups of letters and digits with '-' between them, such as a UUID, of "
            f"at most {_LONGEST_ID} characters"
        )
    return asked


def attached_id(session_id: str) -> str:
    """Return the id of a session as a kernel that a client has attached to, and not started.

    A Jupyter server shuts down all its kernels when it ends. That closes no session of another client.
    """
    return str(uuid.uuid5(_NAMESPACE, f"attached:{session_id}"))


def is_started_by_jupyter(session: Session) -> bool:
    """Whether a Jupyter client has opened the session. Jupyter's clients close only these."""
    return session.origin.client == "jupyter"


class Kernels:
    """The sessions of one tenant, as kernels."""

    def __init__(self, sessions: Sessions, executions: Executions) -> None:
        self._sessions = sessions
        self._executions = executions

    async def find(self, name: str) -> Session:
        """Return the open session with this id, or this id as a kernel.

        Raises:
            NotFound, SessionGone
        """
        for session in self._sessions.list():
            if name in (session.id, kernel_id(session.id), attached_id(session.id)):
                return session
        try:
            return await self._sessions.resolve(name)
        except NotFound:
            raise NotFound(f"Kernel does not exist: {name}") from None  # Jupyter's words

    async def shut_down(self, name: str) -> None:
        """Close the session that is this kernel, unless another client has opened it.

        Raises:
            NotFound, SessionGone
        """
        await self.leave(await self.find(name))

    async def leave(self, session: Session) -> None:
        """Close a session that a notebook does not use any more, unless another client has opened it."""
        if is_started_by_jupyter(session):
            await self._sessions.close(session.id)

    async def interrupt(self, session: Session) -> None:
        """Interrupt the kernel, whatever it does. Raises SessionGone, TooManyRequests, Unavailable."""
        if session.is_running or session.state == "asleep":
            session.interrupt()
        else:
            async with session.borrow():
                with contextlib.suppress(ChannelClosed):
                    await session.feed.channel.interrupt()

    async def send(self, session: Session, frame: bytes) -> None:
        """Send the kernel a message that runs no cell, beside the executions. Wakes a sleeping session.

        Raises:
            SessionGone, TooManyRequests, Unavailable
            BadRequest: it runs a cell.
            PolicyRefused: it runs other code, where a policy has to assess code first.
        """
        expect_no_cell(frame)
        if self._executions.may_be_refused(session.options.template):
            expect_no_code(frame)
        async with session.borrow():
            try:
                await session.feed.channel.forward(frame)
            except ChannelClosed as exc:
                raise Unavailable(f"{exc}; try again", retry_after=1) from exc

    async def info(self, session: Session) -> bytes | None:
        """Return the content of a `kernel_info_reply`, if the kernel need not be asked. Wakes the session.

        Raises:
            SessionGone, TooManyRequests, Unavailable
        """
        async with session.borrow():
            with contextlib.suppress(ChannelClosed):
                return session.feed.channel.info
        return None

    async def obey_shutdown(self, session: Session, frame: bytes) -> bool:
        """Do what a `shutdown_request` asks for: close the session soon, as `leave`, or restart its kernel.

        Returns:
            Whether the kernel was restarted.

        Raises:
            BadRequest, SessionGone, Unavailable
        """
        try:
            restart = decode_as(split_frame(frame)[CONTENT_PART], _ShutdownContent).restart
        except ProtocolError as exc:
            raise BadRequest(f"the shutdown_request is invalid: {exc}") from exc
        if restart:
            await session.restart()
        elif is_started_by_jupyter(session):
            self._sessions.close_soon(session)
        return restart

    async def execute(
        self, session: Session, frame: bytes, on_end: Callable[[Result], None]
    ) -> None:
        """Queue the cell of an `execute_request`. The caller skips those that wait if it fails.

        Args:
            frame: the message as the client has made it.
            on_end: called with the result.

        Raises:
            as `Executions.submit`.
        """
        parts = split_frame(frame)
        try:
            header = decode_as(parts[1], RequestHeader)
            content = decode_as(parts[CONTENT_PART], _CellContent)
            metadata = decode_as(parts[METADATA_PART], dict[str, Any])
        except ProtocolError as exc:
            raise BadRequest(f"the execute_request is invalid: {exc}") from exc
        request = ExecutionRequest(
            code=content.code, timeout=session.limits.max_timeout, on_error="keep"
        )
        assessed = "\n".join([content.code, *map(str, content.user_expressions.values())])
        assessment = await self._executions.assess_for(
            session, msgspec.structs.replace(request, code=assessed)
        )
        options = notebook_options(session.limits.output)
        parts[METADATA_PART] = encode({**metadata, **options})
        self._executions.submit(
            session,
            request,
            allow_stdin=content.allow_stdin,
            assessment=assessment,
            may_shorten=True,
            notebook_cell=NotebookCell(join_parts(parts), header.msg_id, content.silent, on_end),
        )


def stops_on_error(frame: bytes) -> bool:
    """Whether the cells that wait are to be skipped if the one of this `execute_request` fails."""
    try:
        content = decode_as(split_frame(frame)[CONTENT_PART], _CellContent)
    except ProtocolError:
        return True
    return content.stop_on_error and not content.silent


def has_failed(frame: bytes) -> bool:
    """Whether an `execute_reply` says that its cell has failed."""
    try:
        return decode_as(split_frame(frame)[CONTENT_PART], _ReplyContent).status == "error"
    except ProtocolError:
        return True


def without_options(frame: bytes) -> bytes:
    """Return an `execute_reply` to a notebook's cell as a stock kernel would send it."""
    parts = split_frame(frame)
    try:
        metadata = decode_as(parts[METADATA_PART], dict[str, Any])
    except ProtocolError:
        return frame
    if metadata.pop(METADATA_KEY, None) is None:
        return frame
    parts[METADATA_PART] = encode(metadata)
    return join_parts(parts)
