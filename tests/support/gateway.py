"""A gateway with one scripted kernel, on a unix socket in the test's process.

It supports the requests of the real gateway (POST /api/kernels, POST …/interrupt, a WebSocket of binary
frames), and runs scripts in place of cells: `scripts[code]` is a coroutine function that gets the `Cell`. A
cell without a script succeeds without output.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from kernelbroker_kernel.contract import (
    CHANNELS_AFTER,
    ENTRIES_PATH,
    EXPORTS_PATH,
    FILES_PATH,
    KERNEL_ENDED,
    KERNELS_PATH,
    METADATA_KEY,
    PROCESSES_PATH,
)
from kernelbroker_server.kernels.framing import SUBPROTOCOL
from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream
from tornado.netutil import bind_unix_socket
from tornado.web import Application, RequestHandler
from tornado.websocket import WebSocketClosedError, WebSocketHandler

_WORD = 8


def frame(
    channel: str,
    msg_type: str,
    parent_id: str,
    content: Any,
    *,
    date: str = "",
    msg_id: str = "k",
    metadata: Any = None,
) -> bytes:
    """Return a message as the gateway sends it; `content` may be JSON bytes, valid or not."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    header = {"msg_id": msg_id, "msg_type": msg_type, "date": date}
    parts = [
        channel.encode(),
        json.dumps(header).encode(),
        json.dumps({"msg_id": parent_id}).encode(),
        json.dumps({} if metadata is None else metadata).encode(),
        body,
    ]
    return raw_frame(parts)


def raw_frame(parts: list[bytes]) -> bytes:
    """Return any parts in the framing of the subprotocol."""
    sizes = itertools.accumulate(map(len, parts), initial=_WORD * (len(parts) + 2))
    offsets = list(sizes)
    return b"".join(n.to_bytes(_WORD, "little") for n in (len(offsets), *offsets)) + b"".join(parts)


class CellFailed(Exception):
    """Raised by a script: the cell fails with this name and value."""

    def __init__(self, name: str, value: str) -> None:
        super().__init__(name, value)
        self.name = name
        self.value = value


@dataclass
class Cell:
    """An execute_request, passed to its script."""

    kernel: Gateway
    msg_id: str
    content: dict[str, Any]
    metadata: dict[str, Any]
    interrupted: asyncio.Event = field(default_factory=asyncio.Event)
    answers: asyncio.Queue[str] = field(default_factory=asyncio.Queue)
    summary: dict[str, Any] = field(default_factory=dict)

    @property
    def code(self) -> str:
        return str(self.content["code"])

    def send(self, channel: str, msg_type: str, content: Any, metadata: Any = None) -> None:
        self.kernel.send(frame(channel, msg_type, self.msg_id, content, metadata=metadata))

    def stdout(self, text: str) -> None:
        self.send("iopub", "stream", {"name": "stdout", "text": text})

    def display(self, data: Any, kind: str = "display_data") -> None:
        self.send("iopub", kind, {"data": data, "metadata": {}})

    async def until_interrupted(self) -> None:
        """Wait for the interrupt, as a cell that sleeps."""
        await self.interrupted.wait()
        raise CellFailed("KeyboardInterrupt", "")


Script: TypeAlias = Callable[[Cell], Awaitable[None]]


class Gateway:
    """A gateway that listens from `start` to `stop`.

    Attributes:
        scripts: what cells do, by their code.
        cells: all execute_requests, in order.
        connected: set while the broker's channel is open.
        on_channel: replaces the kernel: called with the WebSocket's handler when it is open.
        on_start: awaited before `POST /api/kernels` is answered.
        interrupts: the number of interrupt requests.
        sent: the frames of the kernel, which a broker that goes on gets again; none are forgotten.
        received: the number of messages to the kernel.
        acknowledged: the number of the last frame that the broker does not need again.
        further: further kernels, by id. Each is an object of this class without a server.
    """

    def __init__(self, path: Path, scripts: dict[str, Script] | None = None) -> None:
        self.path = path
        self.scripts = scripts if scripts is not None else {}
        self.cells: list[Cell] = []
        self.connected = asyncio.Event()
        self.on_channel: Callable[[WebSocketHandler], Awaitable[None]] | None = None
        self.on_start: Callable[[], Awaitable[None]] | None = None
        self.interrupts = 0
        self.sent: list[bytes] = []
        self.received = 0
        self.has_begun = False
        self.acknowledged = 0
        self.further: dict[str, Gateway] = {}
        self.files: dict[str, bytes] = {}
        self.processes: list[dict[str, Any]] = []
        self.exports: dict[str, bytes | None] = {}
        self.channels: set[_Channels] = set()
        self._count = 0
        self._queue: asyncio.Queue[Cell] = asyncio.Queue()
        self._running: Cell | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: HTTPServer | None = None

    def start(self) -> None:
        options = {"gateway": self}
        application = Application(
            [
                ("/api/kernels", _Kernels, options),
                ("/api/kernels/([^/]+)/interrupt", _Interrupt, options),
                ("/api/kernels/([^/]+)/channels", _Channels, options),
                (f"{KERNELS_PATH}/([^/]+)", _FurtherKernel, options),
                (f"{FILES_PATH}/(.*)", _File, options),
                (f"{ENTRIES_PATH}/(.*)", _Entries, options),
                (f"{EXPORTS_PATH}/(.*)", _Export, options),
                (PROCESSES_PATH, _Processes, options),
            ],
            log_function=lambda _handler: None,
            websocket_max_message_size=64 * 1024**2,
        )
        self._server = HTTPServer(application)
        self._server.add_sockets([bind_unix_socket(str(self.path))])
        self.spawn(self._work())

    async def stop(self) -> None:
        """End like a killed process: every connection is cut. Calling it twice does no harm."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.stop()
        for kernel in (self, *self.further.values()):
            for channel in list(kernel.channels):
                channel.cut()
            for task in kernel._tasks:
                task.cancel()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await server.close_all_connections()
        self.path.unlink(missing_ok=True)

    def kernel(self, kernel_id: str) -> Gateway:
        """The kernel with this id: a further one, or else the first."""
        return self.further.get(kernel_id, self)

    def add(self, kernel_id: str) -> None:
        """Start a further kernel."""
        kernel = self.further[kernel_id] = Gateway(self.path, self.scripts)
        kernel.exports = self.exports  # one server for all
        kernel.spawn(kernel._work())

    async def end(self, kernel_id: str, status: int) -> None:
        """End a further kernel with this exit status."""
        kernel = self.further.pop(kernel_id)
        for channel in list(kernel.channels):
            channel.close(KERNEL_ENDED, str(status))
        for task in kernel._tasks:
            task.cancel()
        await asyncio.wait(kernel._tasks)

    def stop_reading(self) -> None:
        """Read no more, like a stopped process."""
        for channel in self.channels:
            asyncio.get_running_loop().remove_reader(channel.stream.socket)

    def send(self, data: bytes) -> None:
        self.sent.append(data)
        for channel in self.channels:
            channel.put(data)

    def interrupt(self) -> None:
        self.interrupts += 1
        if self._running is not None:
            self._running.interrupted.set()

    def spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def receive(self, message: bytes) -> None:
        self.received += 1
        count = int.from_bytes(message[:_WORD], "little")
        ends = [
            int.from_bytes(message[_WORD * i : _WORD * (i + 1)], "little")
            for i in range(1, count + 1)
        ]
        parts = [message[a:b] for a, b in itertools.pairwise(ends)]
        header, metadata, content = (json.loads(parts[i]) for i in (1, 3, 4))
        if header["msg_type"] == "input_reply" and self._running is not None:
            self._running.answers.put_nowait(content["value"])
        if (header["msg_type"], header["session"]) == ("kernel_info_request", "broker-internal"):
            self.send(frame("shell", "kernel_info_reply", header["msg_id"], {"status": "ok"}))
        if header["msg_type"] == "execute_request":
            cell = Cell(self, header["msg_id"], content, metadata)
            self.cells.append(cell)
            self._queue.put_nowait(cell)

    async def _work(self) -> None:
        while True:
            await self._run(await self._queue.get())

    async def _run(self, cell: Cell) -> None:
        self._running = cell
        cell.send("iopub", "status", {"execution_state": "busy"})
        if not cell.content["silent"]:
            self._count += 1
            count = {"execution_count": self._count, "code": cell.code}
            cell.send("iopub", "execute_input", count)
        reply: dict[str, Any] = {"status": "ok", "execution_count": self._count, "payload": []}
        try:
            if script := self.scripts.get(cell.code):
                await script(cell)
        except CellFailed as failure:
            traceback = [f"\x1b[31m{failure.name}\x1b[0m", failure.value]
            error = {"ename": failure.name, "evalue": failure.value, "traceback": traceback}
            cell.send("iopub", "error", error)
            reply |= {"status": "error", **error}
        self._running = None
        cell.send("shell", "execute_reply", reply, {METADATA_KEY: cell.summary})
        cell.send("iopub", "status", {"execution_state": "idle"})


class _Processes(RequestHandler):
    def initialize(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def get(self) -> None:
        self.finish({"processes": self.gateway.processes})


class _Kernels(RequestHandler):
    def initialize(self, gateway: Gateway) -> None:
        self.gateway = gateway

    async def post(self) -> None:
        if self.gateway.on_start is not None:
            await self.gateway.on_start()
        kernel_id = json.loads(self.request.body).get("kernel_id")
        if kernel_id is not None:
            self.gateway.add(kernel_id)
        self.set_status(201)
        self.write({"id": kernel_id or "the-kernel"})


class _FurtherKernel(_Kernels):
    async def delete(self, kernel_id: str) -> None:
        if kernel_id not in self.gateway.further:
            self.set_status(404)
            return
        await self.gateway.end(kernel_id, 137)
        self.set_status(204)


class _File(_Kernels):
    """A workspace without directories, whose files can only be read and written completely."""

    def decode_argument(self, value: bytes, name: str | None = None) -> str:
        return value.decode("latin-1")

    async def get(self, path: str) -> None:
        if (content := self.gateway.files.get(path)) is None:
            self.set_status(404)
            self.write({"code": "not_found", "message": "there is no such file"})
        else:
            self.set_header("Content-Type", "application/octet-stream")
            self.write(content)

    async def put(self, path: str) -> None:
        self.gateway.files[path] = self.request.body
        self.set_status(204)

    async def delete(self, path: str) -> None:
        if self.gateway.files.pop(path, None) is None:
            await self.get(path)
        else:
            self.set_status(204)

    async def post(self, path: str) -> None:
        self.set_status(409)
        self.write({"code": "conflict", "message": "there are no directories here"})


class _Entries(_Kernels):
    async def get(self, _path: str) -> None:
        self.write({"entries": [], "truncated": False})


class _Export(_Kernels):
    async def get(self, ticket: str) -> None:
        if (data := self.gateway.exports.pop(ticket, None)) is None:
            self.set_status(404)
        else:
            self.write(data)


class _Interrupt(_Kernels):
    async def post(self, kernel_id: str) -> None:  # type: ignore[override]
        self.gateway.kernel(kernel_id).interrupt()
        self.set_status(204)


class _Channels(WebSocketHandler):
    def initialize(self, gateway: Gateway) -> None:
        self.gateway = gateway

    def select_subprotocol(self, subprotocols: list[str]) -> str | None:
        return SUBPROTOCOL if SUBPROTOCOL in subprotocols else None

    def open(self, *args: str, **_kwargs: str) -> None:
        self.gateway = self.gateway.kernel(args[0])
        if self.gateway.has_begun:
            after = int(self.get_argument(CHANNELS_AFTER, str(len(self.gateway.sent))))
            hello = {"received": self.gateway.received, "first": after + 1}
            self.put(json.dumps(hello), binary=False)
            for data in self.gateway.sent[after:]:
                self.put(data)
        self.gateway.has_begun = True
        self.gateway.channels.add(self)
        self.gateway.connected.set()
        if self.gateway.on_channel is not None:
            self.gateway.spawn(self.gateway.on_channel(self))

    def on_message(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self.gateway.acknowledged = int(message)
        elif self.gateway.on_channel is None:
            self.gateway.receive(message)

    def on_close(self) -> None:
        self.gateway.channels.discard(self)
        if not self.gateway.channels:
            self.gateway.connected.clear()

    def put(self, data: bytes | str, *, binary: bool = True) -> None:
        try:
            sent = asyncio.ensure_future(self.write_message(data, binary=binary))
            sent.add_done_callback(lambda done: done.cancelled() or done.exception())
        except WebSocketClosedError:
            pass

    @property
    def stream(self) -> IOStream:
        assert self.ws_connection is not None
        return self.ws_connection.stream  # type: ignore[attr-defined, no-any-return]

    def cut(self) -> None:
        if self.ws_connection is not None:
            self.stream.close()
