"""Jupyter Kernel Gateway and Enterprise Gateway over TCP with default settings.

The client is a WebSocket of Tornado, which both gateways bring. It speaks as a Jupyter server does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import uuid
from asyncio.subprocess import DEVNULL
from dataclasses import dataclass
from typing import Any

from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from tornado.websocket import WebSocketClientConnection, websocket_connect

from peers.adapter import AWAY_S, Adapter, Outcome
from peers.use_jupyter import read_message

START_TIMEOUT_S = 60.0
MAX_MESSAGE = 2**30


@dataclass
class Kernel:
    kernel_id: str
    client_id: str
    websocket: WebSocketClientConnection


class Used(Adapter):
    module = "kernel_gateway"
    request: dict[str, Any] = {}

    async def start(self) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        # argv as in the documentation; the rest is the default
        argv = (sys.executable, "-m", self.module, f"--port={self._port}")
        self._server = await asyncio.create_subprocess_exec(*argv, stdout=DEVNULL, stderr=DEVNULL)
        async with asyncio.timeout(START_TIMEOUT_S):
            while True:
                try:
                    await self._call("GET", "")
                    return
                except OSError:
                    await asyncio.sleep(0.1)  # nothing tells when it listens

    async def open(self) -> Kernel:
        kernel_id = (await self._call("POST", "/kernels", json.dumps(self.request)))["id"]
        client_id = uuid.uuid4().hex
        return Kernel(kernel_id, client_id, await self._connect(kernel_id, client_id))

    async def run(self, session: Kernel, code: str, timeout: float | None = None) -> Outcome:
        msg_id = await self._send(session, code)
        outcome = Outcome()
        try:
            async with asyncio.timeout(timeout):
                await self._finish(session, msg_id, outcome)
        except TimeoutError:
            await self._call("POST", f"/kernels/{session.kernel_id}/interrupt", "")
            await self._finish(session, msg_id, outcome)
            outcome.error = outcome.error or "timeout"
        return outcome

    async def restart(self, session: Kernel) -> Kernel:
        # A new socket: on the old one the first status after a restart may be missing.
        session.websocket.close()
        await self._call("POST", f"/kernels/{session.kernel_id}/restart", "")
        session.websocket = await self._connect(session.kernel_id, session.client_id)
        return session

    async def close(self, session: Kernel) -> None:
        session.websocket.close()
        await self._call("DELETE", f"/kernels/{session.kernel_id}")

    async def stop(self) -> None:
        self._server.terminate()
        await self._server.wait()

    async def resume(self, session: Kernel, code: str) -> str:
        """Close the socket after the first output and come back with the same session id."""
        outcome = Outcome()
        msg_id = await self._send(session, code)
        while not outcome.text:
            read_message(json.loads(await self._read(session)), msg_id, outcome)
        session.websocket.close()
        await session.websocket.read_message()
        await asyncio.sleep(AWAY_S)
        session.websocket = await self._connect(session.kernel_id, session.client_id)
        await self._finish(session, msg_id, outcome)
        return outcome.text

    async def _connect(self, kernel_id: str, client_id: str) -> WebSocketClientConnection:
        path = f"/api/kernels/{kernel_id}/channels?session_id={client_id}"
        url = f"ws://127.0.0.1:{self._port}{path}"
        return await websocket_connect(url, max_message_size=MAX_MESSAGE)

    async def _call(self, method: str, path: str, body: str | None = None) -> Any:
        url = f"http://127.0.0.1:{self._port}/api{path}"
        options = {"method": method, "body": body, "request_timeout": START_TIMEOUT_S}
        try:
            answer = await AsyncHTTPClient().fetch(url, **options)
        except HTTPClientError as exc:
            detail = exc.response.body.decode() if exc.response else ""
            raise RuntimeError(f"{method} {path}: {exc} {detail}") from exc
        return json.loads(answer.body) if answer.body else None

    async def _send(self, session: Kernel, code: str) -> str:
        header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.4"}
        header |= {"session": session.client_id, "username": "", "date": ""}
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}}
        await session.websocket.write_message(
            json.dumps(message | {"content": content, "buffers": []})
        )
        return header["msg_id"]

    async def _read(self, session: Kernel) -> str | bytes:
        data = await session.websocket.read_message()
        if data is None:
            raise ConnectionError("the gateway closed the connection")
        return data

    async def _finish(self, session: Kernel, msg_id: str, outcome: Outcome) -> None:
        """Read until the idle status and the reply are in, or the kernel is restarted by itself."""
        idle = replied = False
        while not (idle and replied):
            message = json.loads(await self._read(session))
            if message["content"].get("execution_state") in ("restarting", "autorestarting"):
                outcome.error = "the kernel died"
                return
            if message["msg_type"] == "execute_reply":
                replied |= message["parent_header"].get("msg_id") == msg_id
            else:
                idle |= read_message(message, msg_id, outcome)


class Enterprise(Used):
    """Kernels as local processes, which is what it does without a cluster."""

    module = "enterprise_gateway"
    request = {"env": {"KERNEL_USERNAME": "benchmark"}}  # root is refused

    async def start(self) -> None:
        os.environ.setdefault("PYTHONWARNINGS", "ignore")
        await super().start()
