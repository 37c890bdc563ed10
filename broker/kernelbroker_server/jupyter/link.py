"""The link between one session and the Jupyter clients that are connected to it.

All clients get what the kernel publishes; the one that has sent a request gets the reply. Cells go through
the session's queue. All other requests go to the kernel at once, as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import uuid
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import ProtocolError, RequestError
from kernelbroker.protocol.events import Result

from ..kernels.framing import (
    BROKER_SESSION,
    CONTENT_PART,
    INTERNAL_SESSION,
    Incoming,
    Outgoing,
    encode_frame,
    join_parts,
    split_frame,
)
from ..kernels.redaction import Redactor
from ..service.kernel_requests import EXECUTE, debug_failure
from ..service.kernels import Kernels, has_failed, stops_on_error, without_options
from ..sessions.session import Session
from .client import Client
from .messages import ClientMessage, made, status

logger = logging.getLogger(__name__)

PARKED_S = 120.0
"""How long messages are kept for a client that lost its connection."""
_MAX_PARKED = 32
_NUDGE_SESSION = "broker-nudge"
_CHANNELS = ("shell", "control", "stdin")
_SKIPPED = "Aborted"
_INFO, _INFO_REPLY = "kernel_info_request", "kernel_info_reply"


class KernelLink:
    """The clients of one session's kernel, from the first one's arrival until none is left.

    Args:
        on_empty: called when no client is left.
    """

    def __init__(self, session: Session, kernels: Kernels, on_empty: Callable[[], None]) -> None:
        self.session = session
        self._kernels = kernels
        self._on_empty = on_empty
        self._clients: list[Client] = []
        self._parked: dict[str, tuple[Client, asyncio.TimerHandle]] = {}
        self._kernel_session = uuid.uuid4().hex
        """What the kernel has in the headers of its messages."""
        self._redactor: tuple[frozenset[str], Redactor] = (frozenset(), Redactor(()))
        self._tasks: set[asyncio.Task[None]] = set()
        self._following = contextlib.ExitStack()
        self._following.enter_context(session.feed.followed(self))

    @property
    def connections(self) -> int:
        return len(self._clients)

    # Clients.

    def join(self, session_id: str) -> Client:
        """Add a client. One that was connected as `session_id` gets what it missed."""
        client, timer = self._parked.pop(session_id, (None, None))
        if timer is not None:
            timer.cancel()
        if client is None:
            client = Client(session_id)
            client.working = self._spawn(self._work(client))
        self._clients.append(client)
        return client

    def leave(self, client: Client) -> None:
        """Remove a client that has disconnected. It may come back."""
        if client not in self._clients:
            return
        self._clients.remove(client)
        if client.is_behind or client.is_ended or not client.session_id:
            self._forget(client)
            return
        if (earlier := self._parked.pop(client.session_id, None)) is not None:
            earlier[1].cancel()
            self._forget(earlier[0])
        while len(self._parked) >= _MAX_PARKED:
            oldest, timer = self._parked.pop(next(iter(self._parked)))
            timer.cancel()
            self._forget(oldest)
        client.park()
        loop = asyncio.get_running_loop()
        timer = loop.call_later(PARKED_S, self._expire, client)
        self._parked[client.session_id] = client, timer

    def _expire(self, client: Client) -> None:
        del self._parked[client.session_id]
        self._forget(client)

    def _forget(self, client: Client) -> None:
        if client.working is not None:
            client.working.cancel()
        if not (self._clients or self._parked):
            self._close()

    def _close(self) -> None:
        self._following.close()
        self._on_empty()

    async def take(self, client: Client, message: ClientMessage) -> None:
        """Handle a message of a client. Those of the shell channel keep their order."""
        if message.channel not in _CHANNELS:
            logger.info("a Jupyter client sent a message on an unknown channel")
            return
        client.sessions.add(message.header.session)
        if message.channel == "shell":
            await client.requests.put(message)
        else:
            await self._answer(client, message)

    async def _work(self, client: Client) -> None:
        while True:
            await self._answer(client, await client.requests.get())

    async def _answer(self, client: Client, message: ClientMessage) -> None:
        header = message.header
        try:
            if header.msg_type == "shutdown_request":
                await self._shut_down(client, message)
                return
            if header.msg_type == _INFO and (info := await self._kernels.info(self.session)):
                self._tell_info(client, message, info)
                return
            if (message.channel, header.msg_type) != ("shell", EXECUTE):
                await self._kernels.send(self.session, message.frame)
                return
            client.pending[header.msg_id] = message
            await self._kernels.execute(
                self.session, message.frame, lambda result: self._ended(client, message, result)
            )
        except RequestError as exc:
            if header.msg_id in client.pending:
                await client.until_turn(header.msg_id)
            self._fail(client, message, type(exc).__name__, exc.message)
            if header.msg_type == EXECUTE and stops_on_error(message.frame):
                self._skip_following(client)
        except Exception:
            logger.exception("a request of a Jupyter client failed")
            self._fail(client, message, "InternalError", "a fault of the broker; its log says more")

    def _skip_following(self, client: Client) -> None:
        """End the cells that a client has sent after one that was refused, as after one that failed."""
        for _ in range(client.requests.qsize()):
            message = client.requests.get_nowait()
            if message.header.msg_type == EXECUTE:
                self._fail(client, message, _SKIPPED, "")
            else:
                client.requests.put_nowait(message)

    async def _shut_down(self, client: Client, message: ClientMessage) -> None:
        """Close or restart the session: its kernel must not do so by itself."""
        restart = await self._kernels.obey_shutdown(self.session, message.frame)
        reply = {"status": "ok", "restart": restart}
        parent = message.raw_header
        answer = made(
            message.channel, "shutdown_reply", reply, session=self._kernel_session, parent=parent
        )
        client.push(answer)

    def _tell_info(self, client: Client, message: ClientMessage, info: bytes) -> None:
        """Answer in place of the kernel, which may be busy: clients take one that waits for dead."""
        session, parent = self._kernel_session, message.raw_header
        self._publish(status("busy", session, parent))
        parts = split_frame(made(message.channel, _INFO_REPLY, {}, session=session, parent=parent))
        parts[CONTENT_PART] = info
        client.push(self._masked(join_parts(parts)))
        self._publish(status("idle", session, parent))
        if self.session.is_running:
            self._publish(status("busy", session))

    def _ended(self, client: Client, message: ClientMessage, result: Result) -> None:
        """Reply to a cell that has ended, if the kernel has not."""
        is_pending = client.answered(message.header.msg_id) is not None
        if is_pending and (detail := result.error_detail) is not None:
            if detail.name != _SKIPPED:
                self._skip_waiting(client, message)
            self._fail(client, message, detail.name, detail.value)

    def _skip_waiting(self, client: Client, failed: ClientMessage) -> None:
        """End the cells of Jupyter clients that wait. What is sent after the reply to this one runs."""
        if stops_on_error(failed.frame):
            self.session.skip_notebook_cells()
            self._skip_following(client)

    def _fail(self, client: Client, message: ClientMessage, name: str, text: str) -> None:
        """Answer a request in place of the kernel, which does not."""
        client.answered(message.header.msg_id)
        kind, request, _ = message.header.msg_type.partition("_request")
        if not request:
            return
        reply: dict[str, Any] = {"status": "aborted"}
        if name != _SKIPPED:
            error = {"ename": name, "evalue": text, "traceback": [f"{name}: {text}"]}
            reply = {"status": "error", **error}
            if kind == "execute":
                reply |= {"execution_count": None, "user_expressions": {}, "payload": []}
            elif kind == "debug":
                reply |= debug_failure(message.frame, text)
        parent, session = message.raw_header, self._kernel_session
        self._publish(status("busy", session, parent))
        if kind == "execute" and name != _SKIPPED:
            self._publish(made("iopub", "error", error, session=session, parent=parent))
        answer = made(
            message.channel,
            f"{kind}_reply",
            reply,
            session=session,
            parent=parent,
            metadata={"status": reply["status"]},
        )
        client.push(answer)
        self._publish(status("idle", session, parent))

    # The kernel.

    def on_message(self, message: Incoming) -> None:
        self._kernel_session = message.header.session or self._kernel_session
        if message.parent_session == INTERNAL_SESSION:
            return
        kind, frame = message.header.msg_type, message.frame
        if kind == "execute_reply":
            frame = without_options(frame)
        frame = self._masked(frame)
        if message.channel != "iopub":
            for client in self._clients_and_parked():
                if message.parent_session in client.sessions:
                    if kind == "execute_reply":
                        cell = client.answered(message.parent_id)
                        if cell is not None and has_failed(frame):
                            self._skip_waiting(client, cell)
                    client.push(frame)
            return
        if kind == "execute_input" and message.parent_session == BROKER_SESSION:
            # The kernel does not tell the broker that it begins one of its cells.
            self._publish(status("busy", self._kernel_session, split_frame(frame)[2]))
        self._publish(frame)

    def on_kernel_lost(self) -> None:
        self._publish(status("restarting", self._kernel_session))
        self._spawn(self._revive())

    def on_kernel_ready(self) -> None:
        self._publish(status("starting", self._kernel_session))

    def on_session_ended(self) -> None:
        self._publish(status("dead", self._kernel_session))
        for client in self._clients_and_parked():
            client.end()
        for client, timer in self._parked.values():
            timer.cancel()
            if client.working is not None:
                client.working.cancel()
        self._parked.clear()
        if not self._clients:
            self._close()

    async def _revive(self) -> None:
        """Have a fresh kernel, and let it show that it is there."""
        request = encode_frame(Outgoing("shell", _INFO, {}), _NUDGE_SESSION)
        try:
            await self._kernels.send(self.session, request)
        except RequestError:
            self._publish(status("dead", self._kernel_session))

    def _publish(self, frame: bytes) -> None:
        for client in self._clients_and_parked():
            client.push(frame)

    def _clients_and_parked(self) -> list[Client]:
        return [*self._clients, *(client for client, _ in self._parked.values())]

    def _masked(self, frame: bytes) -> bytes:
        """Mask the secrets in a message."""
        secrets = self.session.secrets
        if not secrets:
            return frame
        if self._redactor[0] != secrets:
            self._redactor = secrets, Redactor(secrets)
        parts = split_frame(frame)
        try:
            content = decode_as(parts[4], dict[str, Any])
        except ProtocolError:
            content = {}
        parts[4] = encode(self._redactor[1].clean(content))
        return join_parts(parts)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


class KernelLinks:
    """The links of all sessions that have Jupyter clients."""

    def __init__(self) -> None:
        self._links: dict[str, KernelLink] = {}

    def of(self, session: Session, kernels: Kernels) -> KernelLink:
        """Return the link of a session, the same object while it has clients."""
        key = session.key
        if (link := self._links.get(key)) is None:
            link = KernelLink(session, kernels, partial(self._forget, key))
            self._links[key] = link
        return link

    def _forget(self, key: str) -> None:
        self._links.pop(key, None)

    def connections(self, session: Session) -> int:
        """The number of clients that are connected to a session."""
        link = self._links.get(session.key)
        return 0 if link is None else link.connections
