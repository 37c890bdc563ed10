"""What an execution has learned from its kernel's messages. It can be stored."""

from __future__ import annotations

import enum
from typing import Any

import msgspec
from kernelbroker.protocol.events import Cause, DataFrame, FileChange, Truncated, Variable

from .failures import ErrorContent


class Phase(enum.Enum):
    SENT = "sent"
    STARTED = "started"
    ENDED = "ended"


class Reply(ErrorContent):
    status: str = "error"
    execution_count: int | None = None
    payload: list[dict[str, Any]] = []


class Summary(msgspec.Struct):
    execution_time: float | None = None
    variables: list[Variable] = []
    variables_dropped: int = 0
    files: list[FileChange] = []
    files_truncated: bool = False
    exit_code: int | None = None
    removed: list[str] = []


class Report(msgspec.Struct):
    dataframe: DataFrame | None = None
    return_value: Any = None
    truncated: str | None = None


class CellState(msgspec.Struct):
    """All that an execution has learned from the messages so far. It can be stored.

    Attributes:
        ids: of the requests: the cell's, and the report cell's if there is one.
        awaited: the signals that have not come: of which request, and `reply` or `idle`.
        times: the dates of the cell's beginning and end, as its messages have them.
        budget, truncated: see `Outputs`.
        interruption: why the last interrupt was sent, and its message.
    """

    ids: tuple[str, ...]
    awaited: set[tuple[str, str]]
    budget: int
    truncated: Truncated = msgspec.field(default_factory=Truncated)
    phase: Phase = Phase.SENT
    taken: bool = False
    error: ErrorContent | None = None
    reply: Reply | None = None
    execution_count: int | None = None
    inputs: int = 0
    times: list[str] = msgspec.field(default_factory=lambda: ["", ""])
    summary: Summary = msgspec.field(default_factory=Summary)
    report: Report | None = None
    interruption: tuple[Cause, str] | None = None
