"""The sandbox's processes over HTTP, beside the gateway's own handlers; for the broker only.

`contract` has the paths and the frames.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from tornado.iostream import StreamClosedError

from .contract import FRAMES_ALIVE_S, PROCESSES_PATH
from .errors import Refused
from .file_server import Handler
from .frames import ALIVE, frame
from .process import Command, Process
from .process_watcher import Watcher
from .processes import Processes, environment_of

_processes = Processes()
_MAX_SIGNAL = 64
_MAX_SIZE = 2**16 - 1


class ProcessHandler(Handler):
    """Answers with the frames of a process."""

    watched: tuple[Process, Watcher] | None = None
    is_closed = False

    async def send(self, process: Process, watcher: Watcher) -> None:
        """Stream what the watcher gets, until the process ends or the broker closes the connection."""
        self.watched = process, watcher
        self.set_header("Content-Type", "application/octet-stream")
        self.write(frame(b"s", {"pid": process.pid}))
        try:
            await self.flush()
            while not self.is_closed and not (process.ended is not None and watcher.is_empty):
                data = await watcher.next(FRAMES_ALIVE_S)
                process.taken()
                self.write(data or ALIVE)
                await self.flush()
        except StreamClosedError:
            pass
        finally:
            process.leave(watcher)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.is_closed = True
        if self.watched is not None:
            process, watcher = self.watched
            process.leave(watcher)
            watcher.wake()


class All(ProcessHandler):
    """GET lists the processes; POST starts one."""

    async def get(self) -> None:
        self.reply({"processes": [process.summary for process in _processes.list()]})

    async def post(self) -> None:
        await self.send(*_processes.start(_command(self.request.body)))


class One(ProcessHandler):
    """GET joins a process; POST ?op= acts on it."""

    feeding: asyncio.Task[None] | None = None

    async def get(self, pid: str) -> None:
        await self.send(*_processes.watch(int(pid)))

    async def post(self, pid: str) -> None:
        process = _processes[int(pid)]
        match self.argument("op"):
            case "input":
                await self.act(process.feed(self.request.body))
            case "close":
                await self.act(process.close_input())
            case "signal":
                await process.signal(self.number("number", _MAX_SIGNAL))
            case "resize":
                process.resize((self.number("cols", _MAX_SIZE), self.number("rows", _MAX_SIZE)))
            case other:
                raise Refused("bad_request", f"unknown op {other!r}")
        self.set_status(204)

    async def act(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for an input, which is given up if the broker closes the connection."""
        self.feeding = asyncio.create_task(work)
        with suppress(asyncio.CancelledError):
            await self.feeding

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self.feeding is not None:
            self.feeding.cancel()

    def number(self, name: str, most: int) -> int:
        value = self.argument(name)
        if not value.isdecimal() or not 0 < int(value) <= most:
            raise Refused("bad_request", f"{name} must be a number from 1 to {most}")
        return int(value)


ROUTES = [(PROCESSES_PATH, All), (f"{PROCESSES_PATH}/([0-9]{{1,9}})", One)]


def _command(body: bytes) -> Command:
    """The command that the broker, which has checked its form, wants to start."""
    asked = json.loads(body)
    size = asked.get("size")
    return Command(
        asked["cmd"],
        asked.get("args") or [],
        environment_of(asked.get("env") or {}),
        asked.get("cwd"),
        None if size is None else (size["cols"], size["rows"]),
        bool(asked.get("stdin")),
        asked.get("tag"),
        asked.get("timeout"),
    )
