"""`kernelbroker mcp`: MCP over standard input and output, for clients that start their servers themselves.

Each message is passed on to the broker's `/mcp`, and each answer is passed back, in the revision that the
client speaks. What is added here: the process goes on with its last session where a call names none; it
copies files of this machine; it begins a new connection if the broker was restarted; it can start a broker.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import stat
import sys
import tempfile
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .client import connect
from .discovery import Address, find
from .mcp_exchange import Exchange, Message
from .mcp_files import LocalFiles
from .protocol.errors import ConnectionFailed, KernelBrokerError

_MAX_LINE = 8 * 1024**2
_MAX_CALLS = 32
"""Messages that are answered at the same time; each of them costs a thread."""
_START_S = 60.0
_PARSE_ERROR, _INVALID_REQUEST, _INTERNAL_ERROR = -32700, -32600, -32603
_GONE = ("not_found", "session_gone")
_OPENS = "create_session"
"""The tool that has no argument `session_id`."""


class Bridge:
    """Passes messages on between a client and the broker.

    Args:
        path: of the broker's MCP server.
        send: writes a message to the client.
    """

    def __init__(
        self, address: Address, path: str, files: LocalFiles, send: Callable[[Message], None]
    ) -> None:
        self._address = address
        self._path = path
        self._files = files
        self._send = send
        self._room = asyncio.Semaphore(_MAX_CALLS)
        self._running: dict[Any, asyncio.Task[None]] = {}
        """Requests, by their ids."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._session: str | None = None
        """The last session."""
        self._asked: OrderedDict[str, str | None] = OrderedDict()
        """The session that was added to a call, by the state that its answer had."""
        self._hello: Message | None = None
        """The client's `initialize`, if it speaks one of the older revisions."""
        self._connection: tuple[str | None, str | None] = (None, None)

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Pass messages on until the client closes its side."""
        try:
            while True:
                try:
                    line = await lines.readline()
                except ValueError:
                    self._fail(None, _INVALID_REQUEST, f"a message has at most {_MAX_LINE:,} bytes")
                    continue
                if not line:
                    return
                if line.strip():
                    await self._take(line)
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    async def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            self._fail(None, _PARSE_ERROR, "the message is not JSON")
            return
        if not isinstance(message, dict):
            self._fail(None, _INVALID_REQUEST, "a message is one JSON object")
            return
        method, id_ = message.get("method"), message.get("id")
        if method == "initialize":  # what follows needs the connection
            self._hello = message
            self._connection = (None, None)
            await self._answer(message)
        elif method == "notifications/cancelled" and self._hello is None:
            # Over HTTP a request of 2026-07-28 is cancelled by closing its connection.
            params = message.get("params")
            cancelled = params.get("requestId") if isinstance(params, dict) else None
            if isinstance(cancelled, str | int) and cancelled in self._running:
                self._running[cancelled].cancel()
        else:
            await self._room.acquire()
            task = asyncio.create_task(self._answer(message))
            self._tasks.add(task)
            if isinstance(id_, str | int) and method is not None:
                self._running[id_] = task
            task.add_done_callback(lambda task: self._ended(task, id_))

    def _ended(self, task: asyncio.Task[None], id_: Any) -> None:
        self._room.release()
        self._tasks.discard(task)
        if isinstance(id_, str | int) and self._running.get(id_) is task:
            del self._running[id_]

    async def _answer(self, message: Message) -> None:
        """Pass one message on, and its answers back. A failure is the answer of a request."""
        id_ = message.get("id") if "method" in message else None
        try:
            params = message.get("params")
            if message.get("method") == "tools/call" and isinstance(params, dict):
                await self._call_tool(message, params)
            else:
                await self._pass_on(message)
        except (KernelBrokerError, OSError, ValueError) as exc:
            if id_ is not None:
                self._fail(id_, _INTERNAL_ERROR, str(exc))

    async def _call_tool(self, message: Message, params: dict[str, Any]) -> None:
        name, arguments = params.get("name"), params.get("arguments") or {}
        added = None
        if isinstance(arguments, dict) and "session_id" not in arguments and name != _OPENS:
            # A call that is made again, with the person's answer, must have the same arguments.
            state = params.get("requestState")
            added = self._asked.get(state, None) if isinstance(state, str) else self._session
        if added is not None:
            arguments = {**arguments, "session_id": added}
            message = {**message, "params": {**params, "arguments": arguments}}
        if name in self._files.tools:
            result = await self._files.call(name, arguments)
            self._note(result, None)
            self._send({"jsonrpc": "2.0", "id": message.get("id"), "result": result})
            return
        last = await self._pass_on(message, added, keep_last=added is not None)
        if last is not None:  # the answer to a call with a session that the client did not name
            if _session_is_gone(last, added):
                self._session = None
                self._asked.pop(params.get("requestState", ""), None)
                await self._call_tool({**message, "params": {**params}}, params)
                return
            self._send(last)

    async def _pass_on(
        self, message: Message, added: str | None = None, *, keep_last: bool = False
    ) -> Message | None:
        """Send a message to the broker, and its answers to the client.

        Args:
            added: the session that was added to the arguments.
            keep_last: return the response instead of sending it.
        """
        for attempt in range(2):
            exchange = Exchange(self._address, self._path, message, self._connection)
            async with contextlib.aclosing(exchange.messages()) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    if exchange.status == 404 and self._connection[0] and not attempt:
                        break
                    self._note_connection(message, exchange, answer)
                    if "method" not in answer and "id" in message:
                        answer = {**answer, "id": message["id"]}  # errors of HTTP have none
                        self._note(answer.get("result"), added)
                        self._add_tools(message, answer)
                        if keep_last:
                            return answer
                    if "method" in answer or "id" in message:
                        self._send(answer)
            if exchange.status != 404 or not self._connection[0]:
                return None
            await self._reconnect()
        return None

    async def _reconnect(self) -> None:
        """Begin a new connection: the broker was restarted, or has closed one that was idle for long."""
        assert self._hello is not None
        self._connection = (None, None)
        for message in (self._hello, {"jsonrpc": "2.0", "method": "notifications/initialized"}):
            exchange = Exchange(self._address, self._path, message, self._connection)
            async with contextlib.aclosing(exchange.messages()) as answers:  # type: ignore[type-var]
                async for answer in answers:
                    self._note_connection(message, exchange, answer)

    def _note_connection(self, message: Message, exchange: Exchange, answer: Message) -> None:
        result = answer.get("result")
        if message.get("method") == "initialize" and isinstance(result, dict):
            self._connection = (exchange.connection_id, result.get("protocolVersion"))

    def _note(self, result: Any, added: str | None) -> None:
        """Remember the session that a result names, and the one that a question belongs to."""
        if not isinstance(result, dict):
            return
        structured = result.get("structuredContent")
        if isinstance(structured, dict):
            named = structured.get("session_id")
            if structured.get("closed") is True and named == self._session:
                self._session = None
            elif isinstance(named, str) and "error" not in structured:
                self._session = named
        if isinstance(state := result.get("requestState"), str):
            self._asked[state] = added
            while len(self._asked) > 100:
                self._asked.popitem(last=False)

    def _add_tools(self, message: Message, answer: Message) -> None:
        result = answer.get("result")
        if message.get("method") == "tools/list" and isinstance(result, dict):
            tools = [*result.get("tools", []), *self._files.definitions]
            answer["result"] = {**result, "tools": tools}

    def _fail(self, id_: Any, code: int, message: str) -> None:
        self._send({"jsonrpc": "2.0", "id": id_, "error": {"code": code, "message": message}})


async def serve(url: str | None, roots: Sequence[Path], path: str = "/mcp") -> None:
    """Serve MCP on standard input and output until the client closes them.

    Raises:
        KernelBrokerError: no broker runs, and none can be started.
    """
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(_MAX_CALLS + 4))
    async with (
        _found_or_started(url) as address,
        connect(address.url, address.token) as broker,
    ):
        bridge = Bridge(address, path, LocalFiles(broker, address, roots), _write)
        await bridge.serve(await _standard_input())


def _write(message: Message) -> None:
    sys.stdout.write(json.dumps(message, separators=(",", ":")) + "\n")
    sys.stdout.flush()


async def _standard_input() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_MAX_LINE)
    if stat.S_ISREG(os.fstat(sys.stdin.fileno()).st_mode):
        reader.feed_data(sys.stdin.buffer.read())
        reader.feed_eof()
        return reader
    protocol = asyncio.StreamReaderProtocol(reader)
    await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, sys.stdin)
    return reader


@contextlib.asynccontextmanager
async def _found_or_started(url: str | None) -> AsyncIterator[Address]:
    """Yield the broker at this address, the running one of this user, or one that is started here."""
    async with connect(url) as broker:
        try:
            await broker.health()
        except ConnectionFailed:
            if url is not None or "KERNELBROKER_URL" in os.environ:
                raise
        else:
            yield find(url)
            return
    async with _own_broker() as address:
        yield address


@contextlib.asynccontextmanager
async def _own_broker() -> AsyncIterator[Address]:
    """A broker of this process, on a free port; it ends with the block.

    Raises:
        ConnectionFailed: it does not start; its messages are on standard error.
    """
    with tempfile.TemporaryDirectory(prefix="kernelbroker-") as directory:
        runtime_file = Path(directory, "broker.json")
        environ = {
            **os.environ,
            "KERNELBROKER_RUNTIME_FILE": str(runtime_file),
            "KERNELBROKER_PORT": "0",
        }
        server = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "kernelbroker_server"),
            env=environ,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sys.stderr.fileno(),
        )
        try:
            await _started(server, runtime_file)
            yield find(environ=environ)
        finally:
            if server.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    server.terminate()
            await server.wait()


async def _started(server: asyncio.subprocess.Process, runtime_file: Path) -> None:
    """Wait until a broker has written its runtime file. Raises ConnectionFailed."""
    try:
        async with asyncio.timeout(_START_S):
            while not await asyncio.to_thread(runtime_file.exists):
                if server.returncode is not None:
                    raise ConnectionFailed(
                        "no broker runs, and none can be started here: see the messages above. "
                        "Start one, or set KERNELBROKER_URL and KERNELBROKER_TOKEN"
                    )
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise ConnectionFailed(f"the broker did not start within {_START_S:g} s") from None


def _session_is_gone(answer: Message, session_id: str | None) -> bool:
    """Whether a call failed since the session that was added to it is not open any more."""
    result = answer.get("result")
    if not isinstance(result, dict) or not result.get("isError"):
        return False
    structured = result.get("structuredContent")
    if not isinstance(structured, dict) or structured.get("session_id") != session_id:
        return False
    error = structured.get("error")
    return isinstance(error, dict) and error.get("name") in _GONE
