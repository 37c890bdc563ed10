"""Derives the cause of a sandbox's end from the gateway's exit status. No I/O."""

from __future__ import annotations

from collections.abc import Collection

from kernelbroker_kernel.contract import EXIT_GATEWAY_FAILED

from .base import EndCause, Limits, SandboxEnd
from .child import signal_name

BY_SIGNAL = 128
"""The exit status of a process that a signal ended is greater by the signal's number."""
_KILLED = BY_SIGNAL + 9
_KILL_OF_ANY_SIGNAL = "None"
"""Podman reports a kill, but not its signal."""
_DETAIL_CHARS = 300


def end_of(status: int | None, limits: Limits, out_of_memory: bool, output: str) -> SandboxEnd:
    """Return how a sandbox ended. An exit status of None means that the gateway never ran.

    An out-of-memory kill counts as the cause only if the kernel itself ended by SIGKILL. Otherwise it may
    have been that of a child process, some time ago.
    """
    last_line = output.rpartition("\n")[2][:_DETAIL_CHARS]
    # User code may have written it, to attack the terminal of the reader.
    last_line = "".join(
        char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in last_line
    )
    if out_of_memory and status in (None, _KILLED):
        size = f"{limits.memory / 1024**3:.1f} GiB"
        return SandboxEnd(EndCause.OUT_OF_MEMORY, f"the sandbox exceeded its limit of {size}")
    if status is None:
        return SandboxEnd(EndCause.SANDBOX_LOST, f"the jail could not be set up: {last_line}")
    if status == EXIT_GATEWAY_FAILED:
        return SandboxEnd(EndCause.SANDBOX_LOST, f"the gateway failed: {last_line}")
    how = (
        f"was killed by {name}" if (name := signal_name(status)) else f"exited with status {status}"
    )
    return SandboxEnd(EndCause.KERNEL_DIED, f"the kernel {how}", last_line)


def was_killed(status: int, signals: Collection[str]) -> bool:
    """Return whether one of the signals that the engine sent has ended a container."""
    return status > BY_SIGNAL and not {str(status - BY_SIGNAL), _KILL_OF_ANY_SIGNAL}.isdisjoint(
        signals
    )


def lost(what: str) -> SandboxEnd:
    """Return the end of a container that was ended from outside."""
    return SandboxEnd(EndCause.SANDBOX_LOST, f"the container {what}")
