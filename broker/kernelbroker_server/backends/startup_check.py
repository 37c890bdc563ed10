"""The check at startup, in real sandboxes, before any session gets one.

A cell runs through the real gateway and kernel: it writes to the workspace and, if sandboxes are on a
network, tries to reach another sandbox and the host.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from ..kernels.channel import ChannelClosed
from ..kernels.framing import Incoming
from ..kernels.gateway import GatewayConnection
from ..kernels.requests import execute_request
from .base import Sandbox

Address: TypeAlias = tuple[str, int]
RunCell: TypeAlias = Callable[[Sandbox, str, float], Awaitable[str]]
"""Runs Python in a sandbox, with a timeout in seconds. Returns its output. Raises CheckFailed."""

_END_GRACE_S = 3.0
"""How long the engine may take to report the end of a sandbox whose channel has closed."""
_CELL = """
import json, socket
def reached(host, port):
    try:
        socket.create_connection((host, port), 2).close()
    except OSError:
        return False
    return True
open("/data/startup-check", "x").close()
print(json.dumps([reached(host, port) for host, port in {addresses}]))
"""


class CheckFailed(Exception):
    """The cell could not be run. The message is the reason."""


async def addresses_reached(
    run_cell: RunCell, sandbox: Sandbox, addresses: Sequence[Address], timeout: float
) -> list[bool]:
    """Run the check's cell in the sandbox. Returns the addresses that it could connect to.

    Raises:
        CheckFailed: the cell did not run to its end.
    """
    printed = await run_cell(sandbox, _CELL.format(addresses=[*addresses]), timeout)
    try:
        verdicts = json.loads(printed)
    except ValueError as error:
        raise CheckFailed(f"the cell printed {printed!r}") from error
    if not isinstance(verdicts, list) or len(verdicts) != len(addresses):
        raise CheckFailed(f"the cell printed {printed!r}")
    return [verdict is True for verdict in verdicts]


async def run_cell(sandbox: Sandbox, code: str, timeout: float) -> str:
    """Start the sandbox's kernel and run one cell; see `RunCell`."""
    gateway = GatewayConnection(sandbox.endpoint)
    work = asyncio.create_task(_run_cell(gateway, code, timeout))
    try:
        either: list[asyncio.Future[Any]] = [work, sandbox.ended]
        await asyncio.wait(either, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        if not work.done() and not sandbox.ended.done():
            raise CheckFailed(f"a cell did not end within {timeout:g} s")
        if not work.done() or work.exception() is not None:
            await asyncio.wait([sandbox.ended], timeout=_END_GRACE_S)
            if sandbox.ended.done():
                end = sandbox.ended.result()
                raise CheckFailed(": ".join(filter(None, (end.detail, end.last_line))))
        return await work
    except ChannelClosed as error:
        raise CheckFailed(str(error)) from error
    finally:
        work.cancel()
        await asyncio.wait([work])
        await gateway.close()


async def _run_cell(gateway: GatewayConnection, code: str, timeout: float) -> str:
    channel = await gateway.start_kernel(timeout)
    request = execute_request(code, {})
    done: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    printed: list[str] = []
    error = ""

    def on_message(message: Incoming) -> None:
        nonlocal error
        match message.header.msg_type, message.content_as(dict[str, Any]):
            case "stream", {"text": str(text)}:
                printed.append(text)
            case "error", {"ename": name, "evalue": value}:
                error = f"{name}: {value}"
            case "status", {"execution_state": "idle"} if not done.done():
                done.set_result("".join(printed))  # all output comes before it

    with channel.subscribe(on_message, [request.msg_id]) as subscription:
        await channel.send(request)
        await asyncio.wait([done, subscription.closed], return_when=asyncio.FIRST_COMPLETED)
        if not done.done():
            raise ChannelClosed(subscription.closed.result())
        if error:
            raise CheckFailed(f"a cell failed with {error}")
        return done.result()


@contextmanager
def listening_on(host: str) -> Iterator[Address]:
    """Listen on a port of the host that a sandbox tries to reach. Raises OSError."""
    with socket.create_server((host, 0)) as listener:
        yield listener.getsockname()[:2]
