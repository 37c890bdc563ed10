"""Telemetry events: what happened in the broker, for metrics, traces and the audit log.

Each layer passes its events to an `Observer`, which handles those that it knows and ignores the others.
An observer must not block. If it raises, the error is logged and the broker goes on. Durations are in
seconds. No event holds code, output or secrets.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Concatenate, Literal, ParamSpec, TypeAlias

logger = logging.getLogger(__name__)

_Fields = ParamSpec("_Fields")


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """An HTTP request was answered.

    Attributes:
        tenant: None if the request was not authenticated.
        route: the pattern of the path, without ids.
        traceparent: of the request; None if it had no valid one.
    """

    tenant: str | None
    method: str
    route: str
    status: int
    seconds: float
    traceparent: str | None = None


@dataclass(frozen=True, slots=True)
class LoopDelayed:
    """The event loop has run what was due, this late."""

    seconds: float


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """A sandbox was launched, or failed to launch.

    Attributes:
        failure: why it failed; None if it is warm.
    """

    template: str
    seconds: float
    failure: str | None


@dataclass(frozen=True, slots=True)
class SessionEvent:
    """The fields that all events of a session begin with."""

    tenant: str
    template: str
    session_id: str


@dataclass(frozen=True, slots=True)
class SessionOpened(SessionEvent):
    """A session has its first sandbox and accepts executions."""


@dataclass(frozen=True, slots=True)
class SessionClosed(SessionEvent):
    """A session ended; sent once for each `SessionOpened`."""

    reason: str


@dataclass(frozen=True, slots=True)
class SandboxLeased(SessionEvent):
    """A session got a sandbox, in which it has run nothing yet.

    Attributes:
        seconds: how long it waited.
    """

    sandbox_id: str
    seconds: float


@dataclass(frozen=True, slots=True)
class SandboxReplaced(SessionEvent):
    """A session's sandbox is replaced by a fresh one."""

    cause: str


@dataclass(frozen=True, slots=True)
class ExecutionEnded(SessionEvent):
    """An execution has its result.

    Attributes:
        outcome: `success`, or the cause of its failure.
        code_sha256: of its code, by `code_hash`.
        started_at: when it was accepted, in seconds since the epoch.
        queued_s: from acceptance until the kernel took it.
        total_s: from acceptance to the result.
        output_bytes: the size of its events as JSON.
        packages: the packages that it was asked to install; empty for a cell.
        traceparent: of the request that submitted it; None if that had no valid one.
        request_id: of that request.
        worker_id: the sandbox that it ran in; None if it never ran.
        execution_time: seconds, measured in the kernel; None if it never ran or the kernel died.
        code_length: characters of its code.
        variables: how many the session has then; None if the kernel did not tell.
    """

    execution_id: str
    language: str
    code_sha256: str
    outcome: str
    started_at: float
    queued_s: float
    total_s: float
    output_bytes: int
    packages: Sequence[str] = ()
    traceparent: str | None = None
    request_id: str | None = None
    worker_id: str | None = None
    execution_time: float | None = None
    code_length: int = 0
    variables: int | None = None


@dataclass(frozen=True, slots=True)
class ExecutionRefused(SessionEvent):
    """A policy refused code, or asks for a confirmation first.

    `session_id` is empty if the code was not sent to a session.
    """

    language: str
    code_sha256: str
    mode: str


@dataclass(frozen=True, slots=True)
class RiskyCode(SessionEvent):
    """A policy found code risky: it ran with a warning, waits for a confirmation, or was refused.

    Attributes:
        mode: of the policy: `warn`, `confirm` or `block`.
        rules: that the code matches.
    """

    language: str
    mode: str
    level: str
    rules: Sequence[str]


@dataclass(frozen=True, slots=True)
class ConfirmationAnswered(SessionEvent):
    """A person decided about code that waited for a confirmation.

    Attributes:
        answer: `approve` or `decline`.
        user: the name or the id of the person's token.
    """

    code_sha256: str
    answer: str
    user: str


@dataclass(frozen=True, slots=True)
class ProcessStarted(SessionEvent):
    """A process beside the kernel was started, or refused.

    Attributes:
        program: its name, without arguments.
        command_sha256: of its command line, by `code_hash`.
        outcome: `success`, or the code of the error that the client got.
    """

    program: str
    command_sha256: str
    outcome: str


FileOperation: TypeAlias = Literal[
    "upload", "download", "mkdir", "move", "delete", "export", "checkpoint"
]


@dataclass(frozen=True, slots=True)
class FileOperationEnded(SessionEvent):
    """A client read or changed files of a session's workspace, or tried to.

    Attributes:
        operation: `export` is a variable that was sent as a table, `checkpoint` the session that was saved.
        path: relative to `/data`; the variable's name of an export, the name of a checkpoint.
        target: of a move, else empty.
        outcome: `success`, the code of the error that the client got, or `aborted`.
        size: bytes of content that were moved, also if the operation did not succeed.
        workspace: its name, if no session has it; then `template` and `session_id` are empty.
    """

    operation: FileOperation
    path: str
    target: str
    outcome: str
    size: int
    seconds: float
    workspace: str = ""


@dataclass(frozen=True, slots=True)
class CodeOperationEnded(SessionEvent):
    """An operation on a session's project was done beside its cells, or queued as an execution.

    Attributes:
        operation: its name.
        path: the file or directory, if it names one.
        outcome: `success`, `queued` (an execution, which has an event of its own), or the code of the
        error.
    """

    operation: str
    path: str
    outcome: str
    seconds: float


TelemetryEvent: TypeAlias = (
    RequestEnded
    | LoopDelayed
    | LaunchEnded
    | SessionOpened
    | SessionClosed
    | SandboxLeased
    | SandboxReplaced
    | ExecutionEnded
    | ExecutionRefused
    | RiskyCode
    | ConfirmationAnswered
    | ProcessStarted
    | FileOperationEnded
    | CodeOperationEnded
)
Observer: TypeAlias = Callable[[TelemetryEvent], None]


def ignore_event(_: TelemetryEvent) -> None:
    """An observer that does nothing."""


def combine_observers(observers: Sequence[Observer]) -> Observer:
    """An observer that calls each of these, also after one of them raised."""

    def observe(event: TelemetryEvent) -> None:
        for observer in observers:
            try:
                observer(event)
            except Exception:
                logger.exception("a telemetry observer failed")

    return observe


class SessionEmitter:
    """Emits the events of one session: call it with an event's class and the fields that follow."""

    def __init__(self, observer: Observer, tenant: str, template: str, session_id: str) -> None:
        self._observer = observer
        self._session = (tenant, template, session_id)

    def __call__(
        self,
        event_class: Callable[Concatenate[str, str, str, _Fields], TelemetryEvent],
        *args: _Fields.args,
        **kwargs: _Fields.kwargs,
    ) -> None:
        self._observer(event_class(*self._session, *args, **kwargs))


def code_hash(code: str) -> str:
    """The SHA-256 of code in UTF-8, in hexadecimal. Telemetry never holds the code itself."""
    return hashlib.sha256(code.encode(errors="surrogatepass")).hexdigest()
