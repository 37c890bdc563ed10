"""The baselines: kernels without a broker, each removed afterwards.

One is a stock ipykernel from the sandboxes' environment, used with jupyter_client over ZMQ. The
other is a stock Jupyter Kernel Gateway over TCP with default settings.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import urllib.error
import urllib.request
import uuid
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.blocking.client import BlockingKernelClient
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from kernelbroker_side import KERNEL_PYTHON, START_TIMEOUT_S, running, scratch_directory
from websockets.asyncio.client import ClientConnection, connect


class _StockSpecs(KernelSpecManager):
    """A kernel spec manager with the stock kernel of the kernels' environment."""

    def get_kernel_spec(self, _kernel_name: str) -> KernelSpec:
        argv = [str(KERNEL_PYTHON), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        return KernelSpec(argv=argv, display_name="stock", language="python")


@asynccontextmanager
async def raw_kernel() -> AsyncIterator[tuple[AsyncKernelClient, BlockingKernelClient]]:
    """Start a stock kernel without gateway or broker, and yield two clients of jupyter_client for it."""
    with scratch_directory() as directory:
        manager = AsyncKernelManager(
            kernel_spec_manager=_StockSpecs(), connection_file=str(directory / "kernel.json")
        )
        environ = {**os.environ, "IPYTHONDIR": str(directory)}
        await manager.start_kernel(cwd=str(directory), env=environ, stderr=DEVNULL)
        client = manager.client()
        blocking = BlockingKernelClient()
        blocking.load_connection_file(str(directory / "kernel.json"))
        try:
            for each in (client, blocking):
                each.start_channels()
            await client.wait_for_ready(timeout=START_TIMEOUT_S)
            blocking.wait_for_ready(timeout=START_TIMEOUT_S)
            yield client, blocking
        finally:
            for each in (client, blocking):
                each.stop_channels()
            await manager.shutdown_kernel(now=True)


async def run_raw(client: AsyncKernelClient, code: str, output: list[str] | None = None) -> None:
    """Run one cell through jupyter_client, until the reply and the idle status are in."""
    msg_id = client.execute(code)
    while not _ends(await client.get_iopub_msg(), msg_id, output):
        pass
    while (await client.get_shell_msg())["parent_header"].get("msg_id") != msg_id:
        pass


def run_raw_blocking(client: BlockingKernelClient, code: str) -> None:
    msg_id = client.execute(code)
    while not _ends(client.get_iopub_msg(), msg_id, None):
        pass
    while client.get_shell_msg()["parent_header"].get("msg_id") != msg_id:
        pass


def _ends(message: dict[str, Any], msg_id: str, output: list[str] | None) -> bool:
    if message["parent_header"].get("msg_id") != msg_id:
        return False
    content = message["content"]
    if message["msg_type"] == "stream" and output is not None:
        output.append(content["text"])
    return bool(message["msg_type"] == "status" and content["execution_state"] == "idle")


@asynccontextmanager
async def stock_gateway() -> AsyncIterator[ClientConnection]:
    """Start a stock Jupyter Kernel Gateway on TCP, and yield a WebSocket to a kernel in it."""
    with scratch_directory() as directory:
        port = _free_port()
        argv = ("-m", "kernel_gateway", f"--port={port}", "--log-level=ERROR")
        environ = {name: str(directory) for name in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR")}
        async with running(*argv, python=KERNEL_PYTHON, env=os.environ | environ, stderr=DEVNULL):
            kernel_id = await asyncio.to_thread(_start_kernel, port)
            url = f"ws://127.0.0.1:{port}/api/kernels/{kernel_id}/channels"
            async with connect(url, max_size=None) as websocket:
                await run_on_gateway(websocket, "pass")
                yield websocket


async def run_on_gateway(websocket: ClientConnection, code: str) -> None:
    """Run one cell through the gateway's WebSocket, until the reply and the idle status are in."""
    header = {"msg_id": uuid.uuid4().hex, "msg_type": "execute_request", "version": "5.4"}
    header |= {"session": "benchmark", "username": "", "date": ""}
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
    message = {"channel": "shell", "header": header, "parent_header": {}, "metadata": {}}
    await websocket.send(json.dumps(message | {"content": content, "buffers": []}))
    replied = idle = False
    while not (replied and idle):
        answer = json.loads(await websocket.recv())
        if answer["parent_header"].get("msg_id") == header["msg_id"]:
            replied |= answer["msg_type"] == "execute_reply"
            idle |= answer["content"].get("execution_state") == "idle"


def _start_kernel(port: int) -> str:
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/kernels", data=b"{}")
    for _ in range(int(START_TIMEOUT_S / 0.1)):
        try:
            with urllib.request.urlopen(request) as response:
                return str(json.load(response)["id"])
        except urllib.error.URLError as exc:
            if not isinstance(exc.reason, ConnectionRefusedError):
                raise
        time.sleep(0.1)
    raise TimeoutError("the stock gateway did not start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
