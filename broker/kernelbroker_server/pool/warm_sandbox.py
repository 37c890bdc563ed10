"""A single warm sandbox: its launch, its health check, internal cells, and its removal."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernelbroker.protocol.errors import ProtocolError

from ..backends.base import (
    Backend,
    EndCause,
    LaunchError,
    Orphan,
    Sandbox,
    SandboxEnd,
    SandboxSpec,
)
from ..cancellation import run_to_completion
from ..kernels.channel import ChannelClosed, KernelChannel
from ..kernels.framing import Incoming
from ..kernels.gateway import GatewayConnection
from ..kernels.requests import execute_request

END_GRACE_S = 3.0
"""Seconds to wait for the end of a sandbox whose channel closed, since only its end tells the cause: a
container full of files takes a moment to end, and its engine another one to report it."""
_CHECK_TIMEOUT_S = 10.0
"""Seconds that an idle sandbox may take to answer: a burst of launches can use all processors."""
_MEMORY_SHARE = 0.9
"""An idle sandbox that uses more than this share of its memory is replaced."""


@dataclass(frozen=True, slots=True)
class WarmSandbox:
    """A sandbox, its gateway, and the channel to its kernel, which has run a cell."""

    sandbox: Sandbox
    gateway: GatewayConnection
    channel: KernelChannel

    async def end(self) -> SandboxEnd:
        """Wait until the sandbox has ended and return why."""
        await first_of(self.sandbox.ended, self.channel.closed)
        # The channel closes with the kernel. The end of the sandbox follows and tells the cause.
        await asyncio.wait([self.sandbox.ended], timeout=END_GRACE_S)
        if self.sandbox.ended.done():
            return self.sandbox.ended.result()
        return SandboxEnd(EndCause.SANDBOX_LOST, self.channel.closed.result())

    @property
    def alive(self) -> bool:
        """Whether the sandbox runs and its channel is open."""
        return not self.sandbox.ended.done() and not self.channel.closed.done()


async def launch(
    backend: Backend, sandbox_id: str, spec: SandboxSpec, timeout: float
) -> WarmSandbox:
    """Launch a sandbox and run a first cell in it. Leaves nothing behind if it fails or is cancelled.

    Args:
        timeout: seconds until the gateway must answer.

    Raises:
        LaunchError, ChannelClosed
    """
    sandbox = await backend.launch(sandbox_id, spec)
    gateway = GatewayConnection(sandbox.endpoint)
    try:
        opening = asyncio.ensure_future(gateway.start_kernel(timeout))
        try:
            await first_of(opening, sandbox.ended)
        finally:
            if not opening.done():
                opening.cancel()
                await asyncio.wait([opening])
        if opening.cancelled() or opening.exception() is not None:
            await asyncio.wait([sandbox.ended], timeout=END_GRACE_S)
            if sandbox.ended.done():
                end = sandbox.ended.result()
                why = f"{end.detail}: {end.last_line}" if end.last_line else end.detail
                raise LaunchError(f"the sandbox ended at once: {why}")
        warm = WarmSandbox(sandbox, gateway, opening.result())
        await warm.channel.ask_info()
        await run_silently(warm, "pass", {})
        sandbox.remember(kernel_id=warm.channel.kernel_id)
        return warm
    except BaseException:
        await discard(backend, sandbox, gateway)
        raise


async def join(orphan: Orphan, timeout: float, after: int | None) -> WarmSandbox:
    """Open the channel of a sandbox that an earlier broker has launched.

    Args:
        timeout: seconds until the gateway must answer.
        after: see `GatewayConnection.join_kernel`.

    Raises:
        ChannelClosed: the connections are closed. The sandbox is left as it is.
    """
    gateway = GatewayConnection(orphan.sandbox.endpoint)
    try:
        channel = await gateway.join_kernel(orphan.kernel_id, timeout, after)
        return WarmSandbox(orphan.sandbox, gateway, channel)
    except BaseException:
        await gateway.close()
        raise


async def discard(backend: Backend, sandbox: Sandbox, gateway: GatewayConnection) -> None:
    """Close the connections and remove the sandbox, also if the caller is cancelled meanwhile."""

    async def work() -> None:
        try:
            await gateway.close()
        finally:
            await backend.remove(sandbox)

    await run_to_completion(work())


async def health_check(warm: WarmSandbox, memory_limit: int) -> str:
    """Check a sandbox that is not leased. Takes a few seconds at most.

    Args:
        memory_limit: of the sandbox, in bytes.

    Returns:
        the problem; empty if it is healthy.
    """
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            await run_silently(warm, "pass", {})
    except TimeoutError:
        return f"it did not answer within {_CHECK_TIMEOUT_S:g} s"
    except ChannelClosed as exc:
        return str(exc)
    try:
        async with asyncio.timeout(_CHECK_TIMEOUT_S):
            used = await warm.sandbox.memory()
    except TimeoutError:  # the host or its engine is slow, not the sandbox
        return ""
    if used is not None and used > _MEMORY_SHARE * memory_limit:
        return f"it uses {used / memory_limit:.0%} of its memory although it is idle"
    return ""


async def first_of(*futures: asyncio.Future[Any], timeout: float | None = None) -> bool:
    """Wait until one of the futures is done, or for `timeout` seconds. Cancels and raises nothing.

    Returns:
        whether one of them is done.
    """
    done, _ = await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def run_silently(
    warm: WarmSandbox,
    code: str,
    asked: dict[str, Any],
    on_error: Callable[[str], Exception] = ChannelClosed,
    on_message: Callable[[Incoming], None] | None = None,
) -> None:
    """Run an internal cell, which is not in the kernel's history and whose output is ignored.

    Args:
        on_message: gets all messages that answer the cell, which then is waited for until it is idle.
        on_error: makes the exception to raise from the error's name and value.

    Raises:
        ChannelClosed: the kernel ended.
        Exception: the cell failed; made by `on_error`.
    """
    request = execute_request(code, asked)
    loop = asyncio.get_running_loop()
    replied: asyncio.Future[Incoming] = loop.create_future()
    idle: asyncio.Future[None] = loop.create_future()

    def receive(message: Incoming) -> None:
        if message.channel == "shell" and not replied.done():
            replied.set_result(message)
        if on_message is not None:
            on_message(message)
            if _is_idle(message) and not idle.done():
                idle.set_result(None)

    with warm.channel.subscribe(receive, [request.msg_id]) as messages:
        await warm.channel.send(request)
        for awaited in (replied, idle) if on_message is not None else (replied,):
            await first_of(awaited, messages.closed)
            if not awaited.done():
                raise ChannelClosed(messages.closed.result())
    try:
        reply = replied.result().content_as(dict)
    except ProtocolError as exc:
        raise ChannelClosed(f"the sandbox sent an invalid Jupyter message: {exc}") from exc
    if reply.get("status") != "ok":
        raise on_error(f"{reply.get('ename')}: {reply.get('evalue')}")


def _is_idle(message: Incoming) -> bool:
    if (message.channel, message.header.msg_type) != ("iopub", "status"):
        return False
    try:
        return bool(message.content_as(dict).get("execution_state") == "idle")
    except ProtocolError:
        return False
