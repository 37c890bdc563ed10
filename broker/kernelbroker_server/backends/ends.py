"""Why a sandbox ended, told from its gateway's exit status. Pure."""

from __future__ import annotations

from kernelbroker_kernel.contract import EXIT_GATEWAY_FAILED

from .base import EndCause, Limits, SandboxEnd
from .child import signal_name

_KILLED = 137
_DETAIL_CHARS = 300


def end_of(status: int | None, limits: Limits, out_of_memory: bool, output: str) -> SandboxEnd:
    """How a sandbox ended, from its gateway's exit status (None: it never ran) and the rest.

    A process that was killed for its memory counts only if the kernel's end was a SIGKILL, too: a
    cell's child process may have been the one, long ago.
    """
    last_line = output.rpartition("\n")[2][:_DETAIL_CHARS]
    # User code may have written it, for the terminal of whoever reads the error.
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
