"""The kernel of a forked gateway: forked from it at its beginning, and started later.

A process that has an event loop, threads or ZeroMQ's sockets must not be forked. So the kernel's process
is forked before the gateway has them, and waits. When the gateway is asked to start its kernel, it sends
the command, the environment and the directory with which it would have started it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from . import fresh_process
from .compat.process import SUPPORTED, ForkedProcess

MODULE = "kernelbroker_kernel.kernel"


class WaitingKernel:
    """The kernel's process, as its gateway sees it."""

    def __init__(self, pid: int, orders: int) -> None:
        self._pid = pid
        self._orders: int | None = orders

    def can_run(self, command: Sequence[str]) -> bool:
        """Whether it has not begun yet, and the command is one of a kernel of ours."""
        return SUPPORTED and self._orders is not None and is_kernel(command)

    def start(
        self, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None
    ) -> ForkedProcess:
        """Let it begin; only once."""
        assert self._orders is not None
        order = order_of(command, env, cwd)
        descriptor, self._orders = self._orders, None
        with os.fdopen(descriptor, "w", errors="surrogateescape") as file:
            json.dump(order, file)
        return ForkedProcess(self._pid, command)


def is_kernel(command: Sequence[str]) -> bool:
    """Whether a command starts a kernel of ours."""
    return list(command[1:3]) == ["-m", MODULE]


def order_of(
    command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None
) -> dict[str, Any]:
    """What a forked kernel needs to know to be the one that this process would start."""
    variables = dict(os.environ if env is None else env)
    variables["JPY_PARENT_PID"] = str(os.getpid())  # as jupyter_client's launcher sets it
    return {
        "command": list(command),
        "env": variables,
        "cwd": str(cwd or Path.cwd()),
        "ignored": fresh_process.ignored_signals(),
    }


def become_kernel() -> None:
    """Leave the session of the gateway, in a forked process, and read from nobody."""
    os.setsid()  # an interrupt is sent to the kernel's group
    # Standard input is a pipe that nobody writes to, as jupyter_client gives it to its kernels.
    empty, nobody = os.pipe()
    os.dup2(empty, 0)
    os.close(empty)
    os.close(nobody)


def fork(close: Sequence[int]) -> WaitingKernel | dict[str, Any] | None:
    """Fork the kernel's process.

    Args:
        close: descriptors that are the gateway's alone.

    Returns:
        in the gateway the waiting kernel. In the kernel, when it may begin, its order; None if the gateway
        has ended.
    """
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(reading)
        return WaitingKernel(pid, writing)
    for descriptor in (writing, *close):
        os.close(descriptor)
    become_kernel()
    with os.fdopen(reading, errors="surrogateescape") as file:
        order = file.read()
    return json.loads(order) if order else None


def run(order: dict[str, Any]) -> None:
    """Be the kernel until it ends."""
    from . import kernel

    fresh_process.renew()
    fresh_process.forget("jsonschema")  # the gateway's lacks `unused_imports.FORMATS`
    fresh_process.ignore_only(order["ignored"])
    fresh_process.set_environment(order["env"])
    command = order["command"]
    fresh_process.set_command(command, command[0], order["cwd"])
    kernel.main(sys.argv[1:])
