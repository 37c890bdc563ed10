"""E2B's service `process.Process`: processes in a sandbox."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncGenerator
from typing import Any

from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound

from ...service.processes import (
    Alive,
    Command,
    Ended,
    Output,
    ProcessInfo,
    TerminalSize,
    WatchedProcess,
)
from .connect import ConnectError
from .places import place_of
from .rpc import Call, ClientStream, Fields, Method

_SIGNALS = {"SIGNAL_SIGTERM": 15, "SIGNAL_SIGKILL": 9}
_OUTPUTS = {"stdout": "stdout", "stderr": "stderr", "terminal": "pty"}
_INPUTS = ("stdin", "pty")


async def _list(call: Call, _request: Fields) -> Fields:
    listed = await call.tenant.processes.list(call.session)
    return {"processes": [_info(each) for each in listed]}


async def _start(call: Call, request: Fields) -> AsyncGenerator[Fields, None]:
    config = request.get("process", {})
    size = None
    if "pty" in request:
        size = _size(request["pty"])
    command = Command(
        cmd=config.get("cmd", ""),
        args=config.get("args", []),
        env=config.get("envs", {}),
        cwd=place_of(config["cwd"]).absolute if "cwd" in config else None,
        size=size,
        stdin=request.get("stdin", True),  # clients that do not know the field expect it open
        tag=request.get("tag"),
        timeout=call.timeout,
    )
    try:
        async with (
            call.tenant.processes.start(call.session, command) as process,
            contextlib.aclosing(_events(call, process)) as events,
        ):
            async for event in events:
                yield {"event": event}
    except (NotFound, Conflict) as exc:
        raise ConnectError("invalid_argument", exc.message) from exc


async def _connect(call: Call, request: Fields) -> AsyncGenerator[Fields, None]:
    pid = await _selected(call, request)
    async with (
        call.tenant.processes.connect(call.session, pid) as process,
        contextlib.aclosing(_events(call, process)) as events,
    ):
        async for event in events:
            yield {"event": event}


async def _update(call: Call, request: Fields) -> Fields:
    pid = await _selected(call, request)
    if "pty" in request:
        await call.tenant.processes.resize(call.session, pid, _size(request["pty"]))
    return {}


async def _send_input(call: Call, request: Fields) -> Fields:
    pid = await _selected(call, request)
    await call.tenant.processes.feed(call.session, pid, _data(request.get("input", {})))
    return {}


async def _send_signal(call: Call, request: Fields) -> Fields:
    number = _SIGNALS.get(request.get("signal", ""))
    if number is None:
        raise BadRequest("the signal must be SIGTERM or SIGKILL")
    pid = await _selected(call, request)
    await call.tenant.processes.signal(call.session, pid, number)
    return {}


async def _close_stdin(call: Call, request: Fields) -> Fields:
    pid = await _selected(call, request)
    await call.tenant.processes.close_input(call.session, pid)
    return {}


class _StreamInput(ClientStream):
    """Names a process first, and then sends its input."""

    pid: int | None = None

    async def receive(self, request: Fields) -> None:
        async with asyncio.timeout(self.call.timeout):
            if "start" in request:
                self.pid = await _selected(self.call, request["start"])
            elif "data" in request:
                if self.pid is None:
                    raise BadRequest("the first message of the stream must name the process")
                data = _data(request["data"].get("input", {}))
                await self.call.tenant.processes.feed(self.call.session, self.pid, data)


def _method(name: str, response: str | None = None, **function: Any) -> Method:
    response = response or name.removesuffix("Request") + "Response"
    return Method(f"process.{name}", f"process.{response}", **function)


METHODS = {
    "List": _method("ListRequest", unary=_list),
    "Start": _method("StartRequest", server_stream=_start),
    "Connect": _method("ConnectRequest", server_stream=_connect),
    "Update": _method("UpdateRequest", unary=_update),
    "StreamInput": _method("StreamInputRequest", client_stream=_StreamInput),
    "SendInput": _method("SendInputRequest", unary=_send_input),
    "SendSignal": _method("SendSignalRequest", unary=_send_signal),
    "CloseStdin": _method("CloseStdinRequest", unary=_close_stdin),
}


async def _selected(call: Call, request: Fields) -> int:
    """The process that a request selects by its id or its tag."""
    selector = request.get("process", {})
    if "tag" in selector:
        for each in reversed(await call.tenant.processes.list(call.session)):
            if each.tag == selector["tag"]:
                return each.pid
        raise NotFound(f"there is no process with the tag {selector['tag']!r}")
    return int(selector.get("pid", 0))


async def _events(call: Call, process: WatchedProcess) -> AsyncGenerator[Fields, None]:
    loop = asyncio.get_running_loop()
    yield {"start": {"pid": process.pid}}
    sent_at = loop.time()
    async for event in process:
        match event:
            case Output(stream=stream, data=data):
                yield {"data": {_OUTPUTS[stream]: base64.b64encode(data).decode()}}
            case Ended():
                yield {"end": _end(event)}
            case Alive():
                if loop.time() - sent_at < call.keepalive:
                    continue
                yield {"keepalive": {}}
        sent_at = loop.time()


def _end(ended: Ended) -> Fields:
    """The end of a process, in the words of Go's os/exec."""
    if ended.exited:
        end: Fields = {"exitCode": ended.exit_code, "exited": True}
        status = f"exit status {ended.exit_code}"
    else:
        end = {"exitCode": -1, "exited": False}
        status = f"signal: {ended.signal}"
    end["status"] = status
    if ended.exit_code:
        end["error"] = status
    return end


def _info(process: ProcessInfo) -> Fields:
    config = {"cmd": process.cmd, "args": process.args, "envs": process.env}
    if process.cwd is not None:
        config["cwd"] = process.cwd
    info = {"config": config, "pid": process.pid}
    return info if process.tag is None else {**info, "tag": process.tag}


def _size(pty: Fields) -> TerminalSize:
    size = pty.get("size", {})
    return TerminalSize(size.get("cols", 0) or 80, size.get("rows", 0) or 24)


def _data(given: Fields) -> bytes:
    for name in _INPUTS:
        if name in given:
            return base64.b64decode(given[name])
    raise BadRequest("the input must be one of stdin and pty")
