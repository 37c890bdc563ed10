"""How far an execution has come, so that another broker can go on with it."""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec
from kernelbroker.protocol.codec import decode_as

from ..kernels.cell_state import CellState
from ..kernels.channel import KernelChannel

_READ_S = 2.0


class Progress(msgspec.Struct):
    """What is stored when an execution begins, and before the gateway forgets messages.

    The messages that follow `received` are sent again to another broker. They cause the same events as
    before, and the first of them are in the log.

    Attributes:
        began_at: seconds by the monotonic clock, which all processes of a machine share until it is
            started again; sandboxes do not outlive that.
        timeout: in seconds, from then on.
        state_lost: the result must say that the session's variables were lost before it.
        sent: the number of messages that the kernel was sent before those of the execution.
        received: the number of the last message of the kernel that `cell` knows of.
        events: the number of events that the log had then.
    """

    began_at: float
    timeout: float
    state_lost: bool
    sent: int
    received: int
    events: int
    cell: CellState

    @property
    def seconds_left(self) -> float:
        """Seconds until the timeout. What another broker goes on with has time to be read."""
        left = self.began_at + self.timeout - time.monotonic()
        return min(max(left, _READ_S), self.timeout)


@dataclass(frozen=True, slots=True)
class LeftExecution:
    """An execution that an earlier broker has left, and the channel to its kernel."""

    progress: Progress
    channel: KernelChannel

    @property
    def was_sent(self) -> bool:
        """Whether the kernel was sent anything of it."""
        return self.channel.sent > self.progress.sent


def begun(timeout: float, state_lost: bool, channel: KernelChannel, cell: CellState) -> Progress:
    """The progress of an execution that begins now."""
    return Progress(time.monotonic(), timeout, state_lost, channel.sent, channel.received, 0, cell)


def decode_progress(data: bytes) -> Progress:
    """Raises ProtocolError if it is not one of this version."""
    progress: Progress = decode_as(data, Progress)
    return progress
