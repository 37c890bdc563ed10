"""Kernels through jupyter_client over ZMQ: the floor, without gateway, broker or isolation."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any

from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.manager import AsyncKernelManager

from peers.adapter import AWAY_S, Adapter, Outcome

START_TIMEOUT_S = 60.0
DEATH_POLL_S = 1.0


@dataclass
class Kernel:
    manager: AsyncKernelManager
    client: AsyncKernelClient


class Used(Adapter):
    async def open(self) -> Kernel:
        manager = AsyncKernelManager(kernel_name="python3")
        await manager.start_kernel(stderr=asyncio.subprocess.DEVNULL)
        return Kernel(manager, await _connected(manager))

    async def run(self, session: Kernel, code: str, timeout: float | None = None) -> Outcome:
        msg_id = session.client.execute(code)
        try:
            async with asyncio.timeout(timeout):
                return await _finish(session, msg_id, Outcome())
        except TimeoutError:
            await session.manager.interrupt_kernel()
            outcome = await _finish(session, msg_id, Outcome())
            outcome.error = outcome.error or "timeout"
            return outcome

    async def restart(self, session: Kernel) -> Kernel:
        session.client.stop_channels()
        await session.manager.restart_kernel(now=True)
        session.client = await _connected(session.manager)
        return session

    async def close(self, session: Kernel) -> None:
        session.client.stop_channels()
        await session.manager.shutdown_kernel(now=True)

    async def resume(self, session: Kernel, code: str) -> str:
        """Close the channels after the first output and open new ones to the same kernel."""
        outcome = Outcome()
        msg_id = session.client.execute(code)
        while not outcome.text:
            read_message(await session.client.get_iopub_msg(), msg_id, outcome)
        session.client.stop_channels()
        await asyncio.sleep(AWAY_S)
        session.client = session.manager.client()
        session.client.start_channels()
        done = False
        with contextlib.suppress(TimeoutError):  # the reply went to the old channels
            async with asyncio.timeout(5):
                while not done:
                    done = read_message(await session.client.get_iopub_msg(), msg_id, outcome)
        return outcome.text


async def _connected(manager: AsyncKernelManager) -> AsyncKernelClient:
    client = manager.client()
    client.start_channels()
    await client.wait_for_ready(timeout=START_TIMEOUT_S)
    return client


async def _finish(session: Kernel, msg_id: str, outcome: Outcome) -> Outcome:
    """Read until the idle status and the reply are in, or the kernel has died."""
    idle = False
    while not idle:
        try:
            async with asyncio.timeout(DEATH_POLL_S):
                message = await session.client.get_iopub_msg()
        except TimeoutError:
            if not await session.manager.is_alive():
                outcome.error = "the kernel died"
                return outcome
            continue
        idle = read_message(message, msg_id, outcome)
    while (await session.client.get_shell_msg())["parent_header"].get("msg_id") != msg_id:
        pass
    return outcome


def read_message(message: dict[str, Any], msg_id: str, outcome: Outcome) -> bool:
    """Add an iopub message to the outcome. Return whether the kernel is done with the cell."""
    if message["parent_header"].get("msg_id") != msg_id:
        return False
    kind, content = message["msg_type"], message["content"]
    if kind == "stream":
        outcome.see(content["text"])
    elif kind in ("execute_result", "display_data"):
        outcome.see(content["data"].get("text/plain", ""))
        outcome.images += "image/png" in content["data"]
    elif kind == "error":
        outcome.error = f"{content['ename']}: {content['evalue']}"
    return bool(kind == "status" and content["execution_state"] == "idle")
