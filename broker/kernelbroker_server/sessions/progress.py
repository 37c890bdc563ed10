"""How far an execution has come, so that another broker can go on with it."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec
from kernelbroker.protocol.codec import decode_as

from ..kernels.channel import KernelChannel
from ..kernels.execution import CellState


class Progress(msgspec.Struct):
    """What is stored when an execution begins, and before the gateway forgets messages.

    The messages that follow `received` are sent again to another broker. They cause the same events as
    before, and the first of them are in the log.

    Attributes:
        began_at: seconds since the epoch.
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


@dataclass(frozen=True, slots=True)
class Left:
    """An execution that an earlier broker has left, and the channel to its kernel."""

    progress: Progress
    channel: KernelChannel


def decode_progress(data: bytes) -> Progress:
    """Raises ProtocolError if it is not one of this version."""
    progress: Progress = decode_as(data, Progress)
    return progress
