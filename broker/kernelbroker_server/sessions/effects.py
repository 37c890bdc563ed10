"""The effects of a session's machine: actions for the runner, and events that the runner reports."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self, TypeAlias

from kernelbroker.protocol.errors import RequestError
from kernelbroker.protocol.events import Cause, ErrorDetail, Result

from ..backends.base import EndCause, SandboxEnd


@dataclass(frozen=True, slots=True)
class Failure:
    """Why an execution ends without the kernel's own result."""

    cause: Cause
    name: str
    message: str

    def result(self) -> Result:
        """Return the result that says so."""
        detail = ErrorDetail(name=self.name, value=self.message, cause=self.cause)
        return Result(success=False, error=f"{self.name}: {self.message}", error_detail=detail)

    @classmethod
    def of(cls, end: SandboxEnd) -> Self:
        """Return the failure of an execution whose sandbox has ended."""
        return cls(end.cause.value, _END_NAMES[end.cause], end.detail)


_END_NAMES = {
    EndCause.OUT_OF_MEMORY: "OutOfMemory",
    EndCause.KERNEL_DIED: "KernelDied",
    EndCause.SANDBOX_LOST: "SandboxLost",
}


NOT_STORED = Failure(
    "rejected",
    "NotStored",
    "the broker could not store the cell, so it did not run; its /health says why. Send it again",
)

# Actions, for the runner.


@dataclass(frozen=True, slots=True)
class Acquire:
    """Acquire the first sandbox, then report `sandbox_ready` or `sandbox_failed`."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Give back the old sandbox, acquire a fresh one with the same files, and report as for `Acquire`.

    Attributes:
        cause: the reason of the replacement, for telemetry.
    """

    cause: str


@dataclass(frozen=True, slots=True)
class Suspend:
    """Give back the sandbox of a session whose variables are saved, then report `suspended`."""


@dataclass(frozen=True, slots=True)
class Move:
    """Save the variables and give the sandbox back, for an execution that runs in another pool.

    Report `suspended` then.
    """

    execution_id: str


@dataclass(frozen=True, slots=True)
class Wake:
    """Acquire a sandbox, load the saved variables, and report as for `Acquire`."""


@dataclass(frozen=True, slots=True)
class CancelAcquisition:
    """Stop the running `Acquire`, `Replace` or `Wake`, then report `sandbox_failed`."""


@dataclass(frozen=True, slots=True)
class AwaitTurn:
    """Ask for the execution's turn among all sessions, then report `turn_granted`."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class Run:
    """Run the execution in the present sandbox, then report `execution_ended`.

    Attributes:
        state_lost: the result must say that the session's variables are lost.
    """

    execution_id: str
    state_lost: bool


@dataclass(frozen=True, slots=True)
class Interrupt:
    """Raise KeyboardInterrupt in the running execution."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class Abort:
    """End the running execution now; its sandbox is not used again. Report `execution_ended`."""

    execution_id: str
    failure: Failure


@dataclass(frozen=True, slots=True)
class Detach:
    """Stop to follow all executions. The next broker goes on with them."""


@dataclass(frozen=True, slots=True)
class Reject:
    """Store a result for an execution that never ran, and give up its turn or its place in the queue.

    Attributes:
        awaited_turn: the execution has asked for its turn (`AwaitTurn`), or has it.
    """

    execution_id: str
    failure: Failure
    awaited_turn: bool


@dataclass(frozen=True, slots=True)
class GrantBorrower:
    """The borrower may use the sandbox's gateway."""

    borrower: int


@dataclass(frozen=True, slots=True)
class RefuseBorrower:
    borrower: int
    error: RequestError


@dataclass(frozen=True, slots=True)
class AnswerRestarts:
    """Answer the callers of `restart`; `error` is None if the fresh kernel is ready."""

    error: RequestError | None


@dataclass(frozen=True, slots=True)
class Release:
    """Give back the sandbox and the workspace, then report `released`."""


# Events.


@dataclass(frozen=True, slots=True)
class Opened:
    """The session has its first sandbox and accepts executions."""


@dataclass(frozen=True, slots=True)
class OpeningFailed:
    """There was no sandbox; the session closes."""

    error: RequestError


@dataclass(frozen=True, slots=True)
class Left:
    """The session accepts nothing more, and is left to the next broker. `close` may follow."""


@dataclass(frozen=True, slots=True)
class SessionEnded:
    """The session accepts no more executions. It is emitted once."""

    reason: str


Action: TypeAlias = (
    Acquire
    | Replace
    | Suspend
    | Move
    | Wake
    | CancelAcquisition
    | AwaitTurn
    | Run
    | Interrupt
    | Abort
    | Detach
    | Reject
    | GrantBorrower
    | RefuseBorrower
    | AnswerRestarts
    | Release
)
Event: TypeAlias = Opened | OpeningFailed | Left | SessionEnded
Effect: TypeAlias = Action | Event
