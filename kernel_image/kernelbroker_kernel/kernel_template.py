"""A process of a forked gateway that forks further kernels of it.

The gateway has an event loop and ZeroMQ's sockets, so it must not fork. Before it has them, it forks this
process, which has everything imported and waits. They talk over a socketpair (SOCK_SEQPACKET), in JSON:

    gateway:   the order of a kernel, as `waiting_kernel.order_of` makes it
    template:  {"pid": int}                     for each order, in their order
    template:  {"ended": pid, "status": int}    as in `os.waitstatus_to_exitcode`

It ends when the gateway does, and its kernels end when it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from . import waiting_kernel

_MESSAGE_BYTES = 128 * 1024


class FurtherKernel:
    """A kernel's process, which is no child of this one. For jupyter_client, it is a `Popen`.

    Attributes:
        ended: resolved with its status.
    """

    stdin = stdout = stderr = None

    def __init__(self, pid: int, ended: asyncio.Future[int]) -> None:
        self.pid = pid
        self.ended = ended

    def poll(self) -> int | None:
        return self.ended.result() if self.ended.done() else None

    def wait(self) -> int:
        return self.ended.result()

    def send_signal(self, number: int) -> None:
        if not self.ended.done():
            os.kill(self.pid, number)


class KernelTemplate:
    """The process, as the gateway sees it."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel: socket.socket | None = channel
        self._orders: deque[asyncio.Future[int]] = deque()
        self._kernels: dict[int, asyncio.Future[int]] = {}
        self._reads = False

    @property
    def descriptor(self) -> int:
        """Of the socketpair's end, which is the gateway's alone."""
        assert self._channel is not None
        return self._channel.fileno()

    def can_run(self, command: Sequence[str]) -> bool:
        """Whether it lives, and the command is one of a kernel of ours."""
        return self._channel is not None and waiting_kernel.is_kernel(command)

    async def fork(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None
    ) -> FurtherKernel:
        """Fork a kernel. Raises OSError if that fails."""
        assert self._channel is not None
        order = json.dumps(waiting_kernel.order_of(command, env, cwd)).encode()
        if len(order) > _MESSAGE_BYTES:
            raise OSError("the environment is too large")
        loop = asyncio.get_running_loop()
        if not self._reads:
            self._channel.setblocking(False)
            loop.add_reader(self._channel, self._read)
            self._reads = True
        forked: asyncio.Future[int] = loop.create_future()
        self._channel.send(order)
        self._orders.append(forked)
        pid = await forked
        return FurtherKernel(pid, self._kernels[pid])

    def _read(self) -> None:
        assert self._channel is not None
        try:
            data = self._channel.recv(_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._end()
            return
        match json.loads(data):
            case {"pid": pid}:
                self._kernels[pid] = asyncio.get_running_loop().create_future()
                if not (forked := self._orders.popleft()).done():
                    forked.set_result(pid)
            case {"ended": pid, "status": status}:
                self._kernels.pop(pid).set_result(status)

    def _end(self) -> None:
        """The process has ended, for example by user code, and its kernels end as well."""
        assert self._channel is not None
        asyncio.get_running_loop().remove_reader(self._channel)
        self._channel.close()
        self._channel = None
        for forked in self._orders:
            if not forked.done():
                forked.set_exception(OSError("the template of kernels has ended"))
        for pid, ended in self._kernels.items():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            ended.set_result(-signal.SIGKILL)
        self._orders.clear()
        self._kernels.clear()


def fork(close: Sequence[int]) -> KernelTemplate | dict[str, Any]:
    """Fork the template.

    Args:
        close: descriptors that are the gateway's alone.

    Returns:
        in the gateway the template. In a kernel that it forks, its order.
    """
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork():
        there.close()
        return KernelTemplate(here)
    here.close()
    for descriptor in close:
        os.close(descriptor)
    return _serve(there)


def _serve(channel: socket.socket) -> dict[str, Any]:
    """Fork kernels. Returns only in a kernel, its order."""
    poll = select.poll()
    poll.register(channel, select.POLLIN)
    kernels: dict[int, int] = {}
    """Pids, by pidfd."""
    while True:
        for descriptor, _ in poll.poll():
            if descriptor != channel.fileno():
                poll.unregister(descriptor)
                os.close(descriptor)
                pid, status = os.waitpid(kernels.pop(descriptor), 0)
                _send(channel, {"ended": pid, "status": os.waitstatus_to_exitcode(status)})
                continue
            data = channel.recv(_MESSAGE_BYTES)
            if not data:
                os._exit(0)
            pid = os.fork()
            if not pid:
                for each in kernels:
                    os.close(each)
                channel.close()
                waiting_kernel.become_kernel()
                order: dict[str, Any] = json.loads(data)
                order["env"]["JPY_PARENT_PID"] = str(os.getppid())
                return order
            pidfd = os.pidfd_open(pid)
            kernels[pidfd] = pid
            poll.register(pidfd, select.POLLIN)
            _send(channel, {"pid": pid})


def _send(channel: socket.socket, message: dict[str, int]) -> None:
    try:
        channel.send(json.dumps(message).encode())
    except OSError:  # the gateway has ended
        os._exit(0)
