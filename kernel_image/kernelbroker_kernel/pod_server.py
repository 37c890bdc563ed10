"""What the first process of a Pod serves to the broker; `contract` describes the paths."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tornado.httpserver import HTTPServer
from tornado.iostream import IOStream, StreamClosedError
from tornado.web import Application, HTTPError, RequestHandler, stream_request_body

from .contract import (
    POD_END_PATH,
    POD_EXIT_PATH,
    POD_FILES_PATH,
    POD_KILL_PATH,
    POD_USAGE_PATH,
    WORKSPACE,
)
from .pod_processes import Child, kill_all, usage
from .tree_size import measure
from .tree_stream import TreeError, TreeWriter, read_tree

_ALIVE_S = 10.0
"""Between two signs of life in the answer that waits for the gateway's end."""
_READ_BYTES = 256 * 1024
_NO_LIMIT = 2**62
"""No limit here: the volume has one, and the broker another one."""


def make(child: Child) -> Callable[[socket.socket], None]:
    """Return what serves a connection of the broker's."""
    routes = [
        (POD_END_PATH, End),
        (POD_USAGE_PATH, Usage),
        (POD_KILL_PATH, Kill),
        (POD_EXIT_PATH, Exit),
        (POD_FILES_PATH, Files),
    ]
    application = Application(
        [(path, handler, {"child": child}) for path, handler in routes],
        log_function=lambda _: None,
    )
    server = HTTPServer(application, max_body_size=_NO_LIMIT, chunk_size=_READ_BYTES)

    def give(connection: socket.socket) -> None:
        connection.setblocking(False)
        server.handle_stream(IOStream(connection, read_chunk_size=_READ_BYTES), ("", 0))

    return give


class Handler(RequestHandler):
    def initialize(self, child: Child) -> None:
        self.child = child

    def check_xsrf_cookie(self) -> None:
        """No XSRF check: there are no cookies."""

    def log_exception(self, *_error: Any) -> None:
        """Nobody reads it."""


class End(Handler):
    async def get(self) -> None:
        child = self.child
        try:
            while not child.ended.done():
                await asyncio.wait([child.ended], timeout=_ALIVE_S)
                self.write("\n")
                await self.flush()
        except StreamClosedError:
            return
        out_of_memory = usage()["oom_kills"] > 0
        end = {
            "status": child.ended.result(),
            "oom": out_of_memory,
            "output": child.output,
            "restarted": child.restarted,
        }
        self.finish(json.dumps(end))


class Usage(Handler):
    async def get(self) -> None:
        files = self.get_query_argument("files", "")
        if files:
            loop = asyncio.get_running_loop()
            size, count, complete = await loop.run_in_executor(
                None, measure, Path(WORKSPACE), int(files)
            )
            self.finish(json.dumps({"size": size, "files": count, "complete": complete}))
        else:
            self.finish(json.dumps(usage()))


class Kill(Handler):
    async def post(self) -> None:
        if not await kill_all():
            raise HTTPError(500)


class Exit(Handler):
    async def post(self) -> None:
        await kill_all()
        await self.finish()
        os._exit(0)


@stream_request_body
class Files(Handler):
    _writer: TreeWriter | None = None

    async def get(self) -> None:
        loop = asyncio.get_running_loop()
        tree = read_tree(Path(WORKSPACE))
        try:
            while (piece := await loop.run_in_executor(None, next, tree, None)) is not None:
                self.write(piece)
                await self.flush()
        except StreamClosedError:
            return
        finally:
            tree.close()

    async def data_received(self, chunk: bytes) -> None:
        loop = asyncio.get_running_loop()
        if self._writer is None:
            self._writer = TreeWriter(Path(WORKSPACE), _NO_LIMIT, _NO_LIMIT)
        try:
            await loop.run_in_executor(None, self._writer.feed, chunk)
        except (TreeError, OSError) as error:
            raise HTTPError(507, str(error)) from error

    async def put(self) -> None:
        if self._writer is None:
            raise HTTPError(400)
        try:
            self._writer.finish()
        except TreeError as error:
            raise HTTPError(400) from error

    def on_finish(self) -> None:
        if self._writer is not None:
            self._writer.close()

    def on_connection_close(self) -> None:
        self.on_finish()
