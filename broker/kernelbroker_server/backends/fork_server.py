"""One fork server: its start, its forks, the exit statuses that it reports, and its end.

`kernelbroker_kernel/fork_server.py` is the other side and describes the messages. A server that does not
answer within two seconds is killed. The gateways of a dead server go on: their ends are seen by their
pidfds, and their exit statuses come over a pipe.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kernelbroker_kernel.contract import FORK_SERVER_MODULE

from . import jail, seccomp
from .base import SandboxSpec
from .bubblewrap import hide_variables, seccomp_fd
from .child import Child, readable
from .host import Host

START_TIMEOUT_S = 60.0
"""The time for the imports."""
ANSWER_TIMEOUT_S = 2.0
_MOST_REFUSALS = 3
"""In a row. A server that always refuses, as on an old Linux, is ended; launches then do without."""
_LAST_FORK_S = 10.0
"""The time in which launches that have begun may use a server that is being replaced."""
_MESSAGE_BYTES = 64 * 1024
_KILLED = 137


class ForkServerError(Exception):
    """The server did not start, has ended, is silent, or refused. The sandbox can be started without it."""


class ForkedGateway:
    """A gateway that a server has forked. It begins when `open_gate` is called.

    Attributes:
        pid: its pid on the host.
    """

    def __init__(
        self, pid: int, pidfd: int, gate: int, status: int, reported: asyncio.Future[int | None]
    ) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._gate: int | None = gate
        self._status = status
        self._reported = reported
        """The server's report; None if the server has died before."""

    def open_gate(self) -> None:
        """Let it run. Otherwise it ends when `close` is called."""
        assert self._gate is not None
        gate, self._gate = self._gate, None
        try:
            os.write(gate, b"1")
        finally:
            os.close(gate)

    async def ended(self, server: ForkServer) -> int:
        """Wait for its end. Returns the exit status as in a shell.

        A zombie keeps its jail from ending, so a server that does not reap it is killed.
        """
        await readable(self._pidfd)
        await asyncio.wait([self._reported], timeout=ANSWER_TIMEOUT_S)
        if not self._reported.done():
            server.kill()
            await asyncio.wait([self._reported])
        status = self._reported.result()
        if status is None:
            # If the broker is pid 1 of a container, it inherits the orphans of the server.
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)  # noqa: ASYNC222
            with contextlib.suppress(BlockingIOError):
                status = next(iter(os.read(self._status, 1)), None)
        if status is None:
            return _KILLED  # whatever ends in another way tells its status before
        return 128 - status if status < 0 else status

    def close(self) -> None:
        """Close the descriptors. A gateway that waits at its gate ends."""
        if self._gate is not None:
            os.close(self._gate)
            self._gate = None
        os.close(self._pidfd)
        os.close(self._status)


class ForkServer:
    """A server that has imported everything. Made by `start`.

    Attributes:
        user_namespace: a descriptor of the namespace to make jails in; None if it is the broker's own.
        forks: how often it was asked to fork.
        worked: whether it has forked a gateway.
        closed: resolves when it has ended or was ended.
        living: how many of its gateways run.
    """

    def __init__(self, child: Child, channel: socket.socket) -> None:
        self.forks = 0
        self.worked = False
        self._refusals = 0
        self.user_namespace: int | None = None
        self._child = child
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._answers: dict[int, asyncio.Future[tuple[dict[str, Any], list[int]]]] = {}
        self._ends: dict[int, asyncio.Future[int | None]] = {}
        self._ready: asyncio.Future[tuple[dict[str, Any], list[int]]] = self._loop.create_future()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self.changed = asyncio.Event()
        """Set at each fork and at the end."""
        self._retired = False
        self._loop.add_reader(channel.fileno(), self._on_message)

    @classmethod
    async def start(
        cls, host: Host, spec: SandboxSpec, argv: Sequence[str], etc: Path
    ) -> ForkServer:
        """Start a server and wait until it is ready.

        Args:
            argv: the gateway's arguments of Python.
            etc: a directory with the files of `jail.ETC`.

        Raises:
            ForkServerError: with the reason. No process is left.
        """
        channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with theirs, contextlib.ExitStack() as stack:
                program = seccomp.filter_for(may_enter=True)
                filter_fd = seccomp_fd(stack, program)
                module = [str(jail.python_inside(host)), "-m", FORK_SERVER_MODULE]
                command = jail.server_argv(
                    host,
                    spec,
                    etc=etc,
                    program=[*module, str(theirs.fileno())],
                    seccomp=filter_fd,
                )
                command, variables = hide_variables(stack, command)
                inherited = [theirs.fileno(), variables, filter_fd]
                child = Child(command, env={}, pass_fds=[fd for fd in inherited if fd is not None])
        except OSError as error:
            channel.close()
            raise ForkServerError(f"it could not be started: {error}") from error
        channel.setblocking(False)
        server = cls(child, channel)
        try:
            await server._prepare(host, argv)
        except BaseException:
            await server.close()
            raise
        return server

    async def _prepare(self, host: Host, argv: Sequence[str]) -> None:
        jail_filter = base64.b64encode(seccomp.filter_for() or b"").decode()
        self._send({"argv": list(argv), "filter": jail_filter}, [])
        try:
            message, descriptors = await asyncio.wait_for(self._ready, START_TIMEOUT_S)
        except TimeoutError as error:
            raise ForkServerError(f"it was not ready within {START_TIMEOUT_S:g} s") from error
        if "failed" in message:
            raise ForkServerError(f"it failed: {message['failed']}")
        (namespace,) = descriptors
        if host.root:
            os.close(namespace)
        else:
            self.user_namespace = namespace

    @property
    def pid(self) -> int:
        """The pid of its bubblewrap, whose child is the server."""
        return self._child.pid

    @property
    def living(self) -> int:
        return len(self._ends)

    async def fork(self, leader_fd: int, listener: int, output: int) -> ForkedGateway:
        """Fork a gateway into a jail. It waits at its gate.

        Args:
            leader_fd: a pidfd of the jail's first process.
            listener: the gateway's listening socket.
            output: the pipe that becomes its output.

        Raises:
            ForkServerError: no process is left, or the server has been killed.
        """
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as sent:
            gate, gate_write = _pipe(sent, kept)
            status, status_write = _pipe(kept, sent)
            os.set_blocking(status, False)
            self.forks += 1
            launch_id = self.forks
            answer: asyncio.Future[tuple[dict[str, Any], list[int]]] = self._loop.create_future()
            self._answers[launch_id] = answer
            reported = self._ends[launch_id] = self._loop.create_future()
            self.changed.set()
            try:
                self._send({"launch": launch_id}, [leader_fd, listener, output, gate, status_write])
                message, descriptors = await asyncio.wait_for(answer, ANSWER_TIMEOUT_S)
                if "refused" in message:
                    self._refusals += 1
                    raise ForkServerError(f"it refused: {message['why']}")
            except BaseException as error:
                self._forget(launch_id)
                if isinstance(error, ForkServerError):
                    if self._refusals == _MOST_REFUSALS:
                        self.kill()
                    raise
                self.kill()
                if isinstance(error, TimeoutError | OSError):
                    why = f"it did not answer within {ANSWER_TIMEOUT_S:g} s"
                    raise ForkServerError(why) from error
                raise
            (pidfd,) = descriptors
            self._refusals, self.worked = 0, True
            kept.pop_all()
            return ForkedGateway(message["pid"], pidfd, gate_write, status, reported)

    def retire(self) -> None:
        """End the server when its last gateway has ended. Launches that have begun may still fork."""

        def retire_now() -> None:
            self._retired = True
            self._end_if_unused()

        self._loop.call_later(_LAST_FORK_S, retire_now)

    def kill(self) -> None:
        """End the server at once. Its gateways go on."""
        self._child.kill()
        self._on_closed()

    async def close(self) -> None:
        """End the server, and wait until it has ended."""
        self.kill()
        await self._child.wait()

    def output_tail(self) -> str:
        return self._child.output_tail()

    def _send(self, message: dict[str, Any], descriptors: Sequence[int]) -> None:
        if self.closed.done():
            raise ForkServerError("it has ended")
        try:
            socket.send_fds(self._channel, [json.dumps(message).encode()], descriptors)
        except ConnectionError as error:
            self._on_closed()
            raise ForkServerError("it has ended") from error

    def _on_message(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._channel, _MESSAGE_BYTES, 4, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        if not data:
            self._on_closed()
            return
        message = json.loads(data)
        if (ended := message.get("ended")) is not None:
            reported = self._ends.pop(ended, None)
            if (
                reported is not None and not reported.done()
            ):  # nobody waits for one that is cancelled
                reported.set_result(message["status"])
            self._end_if_unused()
            return
        launch_id = message.get("launched", message.get("refused"))
        waiting = self._ready if launch_id is None else self._answers.pop(launch_id, None)
        if waiting is None or waiting.done():
            for descriptor in descriptors:
                os.close(descriptor)
        else:
            waiting.set_result((message, descriptors))

    def _on_closed(self) -> None:
        if self.closed.done():
            return
        self._loop.remove_reader(self._channel.fileno())
        self._channel.close()
        if self.user_namespace is not None:
            os.close(self.user_namespace)
            self.user_namespace = None
        self.closed.set_result(None)
        for waiting in (self._ready, *self._answers.values()):
            if not waiting.done():
                tail = self._child.output_tail().rpartition("\n")[2]
                waiting.set_exception(ForkServerError(f"it has ended: {tail}"))
                waiting.exception()  # nobody may wait for it
        for reported in self._ends.values():
            if not reported.done():
                reported.set_result(None)
        self._answers.clear()
        self._ends.clear()
        self.changed.set()

    def _forget(self, launch_id: int) -> None:
        self._answers.pop(launch_id, None)
        if (reported := self._ends.pop(launch_id, None)) is not None:
            reported.cancel()
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._retired and not self._ends:
            self.kill()


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write
