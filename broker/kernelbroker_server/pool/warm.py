"""A warm sandbox: how it comes to be, cells of the broker's own, whether it is well, and its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..backends.base import Backend, EndCause, LaunchError, Sandbox, SandboxEnd, SandboxSpec
from ..kernels.client import ChannelClosed, KernelClient
from ..kernels.framing import Incoming
from ..kernels.requests import execute_request

END_GRACE_S = 3.0
"""How long a sandbox whose channel closed may take to be seen as ended, with the cause: a container full
of files takes a moment to go, and its engine another one to tell."""
_CHECK_TIMEOUT_S = 10.0
"""How long an idle sandbox may take to answer; long, since a burst of launches takes all processors."""
_MEMORY_SHARE = 0.9
"""An idle sandbox that uses more of its memory than this is of no use to anybody."""


@dataclass(frozen=True, slots=True)
class WarmSandbox:
    """A sandbox and the channel to its kernel, which has run a cell."""

    sandbox: Sandbox
    client: KernelClient

    async def end(self) -> SandboxEnd:
        """Wait until nothing more can come from it, and tell why."""
        await first_of(self.sandbox.ended, self.client.closed)
        # The channel closes with the kernel; the sandbox's own end follows, and knows the cause.
        await asyncio.wait([self.sandbox.ended], timeout=END_GRACE_S)
        if self.sandbox.ended.done():
            return self.sandbox.ended.result()
        return SandboxEnd(EndCause.SANDBOX_LOST, self.client.closed.result())

    @property
    def alive(self) -> bool:
        return not self.sandbox.ended.done() and not self.client.closed.done()


async def launch(
    backend: Backend, sandbox_id: str, spec: SandboxSpec, timeout: float
) -> WarmSandbox:
    """Launch a sandbox and run a first cell in it. Whatever happens, nothing of one that fails is left.

    Args:
        timeout: seconds until its gateway must have answered.

    Raises:
        LaunchError, ChannelClosed
    """
    sandbox = await backend.launch(sandbox_id, spec)
    client: KernelClient | None = None
    try:
        opening = asyncio.ensure_future(KernelClient.open(sandbox.endpoint, timeout))
        try:
            await first_of(opening, sandbox.ended)
        finally:
            if not opening.done():
                opening.cancel()
                await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:
                client = opening.result()  # to be closed, whatever comes next
        if client is None:
            await asyncio.wait([sandbox.ended], timeout=END_GRACE_S)
            if sandbox.ended.done():
                end = sandbox.ended.result()
                why = f"{end.detail}: {end.last_line}" if end.last_line else end.detail
                raise LaunchError(f"the sandbox ended at once: {why}")
            opening.result()
        assert client is not None
        warm = WarmSandbox(sandbox, client)
        await run_silently(warm, "pass", {})
        return warm
    except BaseException:
        await discard(backend, sandbox, client)
        raise


async def discard(backend: Backend, sandbox: Sandbox, client: KernelClient | None) -> None:
    """Remove every trace, whatever happens to the caller."""

    async def work() -> None:
        if client is not None:
            await client.close()
        await backend.remove(sandbox)

    task = asyncio.ensure_future(work())
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as exc:
            cancelled = exc
    if cancelled is not None:
        raise cancelled


async def complaint_of(warm: WarmSandbox, memory_limit: int) -> str:
    """What is wrong with a sandbox that nobody has; empty if nothing is. Takes seconds at most.

    Args:
        memory_limit: in bytes.
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
    except TimeoutError:  # the host or its engine is slow to tell, which is no fault of the sandbox
        return ""
    if used is not None and used > _MEMORY_SHARE * memory_limit:
        return f"it uses {used / memory_limit:.0%} of its memory while nobody has it"
    return ""


async def first_of(*futures: asyncio.Future[Any], timeout: float | None = None) -> bool:
    """Wait until one of them is done, or `timeout` seconds; none is cancelled, none is raised from."""
    done, _ = await asyncio.wait(futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


async def run_silently(
    warm: WarmSandbox,
    code: str,
    asked: dict[str, Any],
    on_error: Callable[[str], Exception] = ChannelClosed,
) -> None:
    """Run a cell of our own that leaves no trace in the session's history.

    Raises:
        ChannelClosed: the kernel ended.
        what `on_error` makes of the one-line error: the cell failed.
    """
    request = execute_request(code, asked)
    replied: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    def on_message(message: Incoming) -> None:
        if (
            message.parent_id == request.msg_id
            and message.channel == "shell"
            and not replied.done()
        ):
            replied.set_result(message.content_as(dict))

    warm.client.on_message = on_message
    try:
        await warm.client.send(request)
        await first_of(replied, warm.client.closed)
        if not replied.done():
            raise ChannelClosed(warm.client.closed.result())
        reply = replied.result()
        if reply.get("status") != "ok":
            raise on_error(f"{reply.get('ename')}: {reply.get('evalue')}")
    finally:
        warm.client.on_message = None
