"""Runs programs inside jails. `kernelbroker_kernel.jail_entry` is the process that does it."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Sequence

import msgspec
from kernelbroker_kernel.contract import JAIL_ENTRY_MODULE, ORDER_VARIABLE

from .child import Child

_MESSAGE_CHARS = 300
_PASSED_ON = ("PYTHONPATH", "PYTHONHOME")


class Order(msgspec.Struct, kw_only=True):
    """What to run; see `kernelbroker_kernel.jail_entry`."""

    leader: int
    argv: list[str]
    env: dict[str, str]
    cwd: str = "/"
    uid: int | None = None
    descriptors: list[int] | None = None
    filter: int | None = None
    pid: int = 0


class ProgramFailed(Exception):
    """The program did not end with status 0; the message is the first line of its output."""


async def run(
    order: Order,
    descriptors: Sequence[int],
    place: Callable[[int], None],
    *,
    timeout: float,
) -> None:
    """Run a program in a jail.

    Args:
        descriptors: of the broker's, that it needs besides `order.leader`.
        place: called with the pid of the process that becomes it, before that does anything.
        timeout: seconds until it must have ended, or until the gateway is started.

    Raises:
        ProgramFailed, OSError
    """
    gate, opener = os.pipe()
    try:
        try:
            child = Child(
                [sys.executable, "-P", "-m", JAIL_ENTRY_MODULE],
                env={
                    **{name: os.environ[name] for name in _PASSED_ON if name in os.environ},
                    ORDER_VARIABLE: msgspec.json.encode(order).decode(),
                },
                stdin=gate,
                pass_fds=[order.leader, *descriptors],
            )
        finally:
            os.close(gate)
        try:
            place(child.pid)
            os.write(opener, b"1")
            async with asyncio.timeout(timeout):
                status = await child.wait()
        except TimeoutError:
            raise ProgramFailed(f"it took longer than {timeout:g} s") from None
        finally:
            if not child.exited.done():
                child.kill()
                await child.wait()
    finally:
        os.close(opener)
    if status != 0:
        reason = child.output_tail().partition("\n")[0][:_MESSAGE_CHARS]
        raise ProgramFailed(reason or f"it ended with status {status}")
