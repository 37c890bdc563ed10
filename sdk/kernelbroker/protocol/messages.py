"""Requests and replies: what a client asks of a session, and what it is answered besides events.

The same structs serve REST bodies and WebSocket operations. The broker refuses a field it does not
know (`forbid_unknown_fields`), so that a misspelt option is told; a client ignores one.

On the WebSocket the first message is `open`; the answer is `opened`. After it `execute`, `interrupt`,
`restart`, `stdin`, `resume` and `close` may come at any time. An operation is answered by its events
(`execute`, `resume`), by `done` (the others), or by `error`; `op_id` is echoed, so that answers find
their questions.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from .events import Variable
from .findings import Finding, Language

Identifier: TypeAlias = Annotated[
    str, msgspec.Meta(pattern=r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}(?!\n)$")
]
"""An id that a client may choose: safe in a path (no `..`), a header and a log line (no newline)."""

OpId: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]


class SessionOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """How a session is opened.

    Attributes:
        session_id: reuse this session, or open one under this id if there is none.
        template: the sandbox recipe.
        workspace: get the files of this workspace, and leave them there; the session's id is its
            name if absent. One session has it at a time.
        workspace_retention: seconds to keep the workspace after the session, if less than the
            broker's own; with 0 it is gone, if nobody gives a name to it.
        env: environment variables for the kernel.
        secrets: the same, whose values are masked in all that executions bring.
        cwd: working directory inside the sandbox; relative to `/data`.
        metadata: the client's own notes, returned with the session.
        idle_timeout: seconds without an execution after which the session closes.
        max_lifetime: seconds after which it closes whatever happens.
    """

    session_id: Identifier | None = None
    template: str = "default"
    workspace: Identifier | None = None
    workspace_retention: Annotated[float, msgspec.Meta(ge=0)] | None = None
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    cwd: str | None = None
    metadata: dict[str, Any] = {}
    idle_timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_lifetime: Annotated[float, msgspec.Meta(gt=0)] | None = None


class ExecutionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One cell to run.

    Attributes:
        execution_id: the client's own id, unique in the session; made by the broker if absent.
        timeout: seconds from the kernel taking the cell to its interruption.
        cwd, env: for this execution only; restored after it.
        secrets: as `env`, with values that are masked in all that the execution brings.
        result_var: a variable to report: a table as `dataframe`, anything else as `return_value`.
        preview_rows: rows of the table to send.
        on_error: `rollback` removes names that a failed cell created; `keep` leaves them.
        on_disconnect: whether the cell runs on or is interrupted when its client goes away.
        confirm: the token of a `confirmation_required` that this very cell was refused with.
    """

    code: str
    execution_id: Identifier | None = None
    language: Language = "python"
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    result_var: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    preview_rows: Annotated[int, msgspec.Meta(ge=0)] = 10
    on_error: Literal["rollback", "keep"] = "rollback"
    on_disconnect: Literal["continue", "interrupt"] = "continue"
    confirm: Annotated[str, msgspec.Meta(max_length=64)] | None = None


class AssessmentRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Code to be judged, and not run."""

    code: str
    language: Language = "python"


class InstallRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Packages to install in a session: names with versions, as PEP 508 has them, such as `name>=1.2`.

    Attributes:
        timeout: seconds, as that of a cell; the longest that is allowed, by default.
        confirm: the token of a `confirmation_required` that this very installation was refused with.
    """

    packages: Annotated[
        list[Annotated[str, msgspec.Meta(min_length=1, max_length=200)]],
        msgspec.Meta(min_length=1, max_length=100),
    ]
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    confirm: Annotated[str, msgspec.Meta(max_length=64)] | None = None


SessionState: TypeAlias = Literal["idle", "busy", "closed"]


class SessionInfo(msgspec.Struct, kw_only=True):
    """A session as its owner sees it. Times are ISO 8601 in UTC; durations are seconds."""

    session_id: str
    state: SessionState
    template: str
    workspace: str = ""
    isolation: str
    created_at: str
    last_active_at: str
    idle_timeout: float
    max_lifetime: float
    executions: int
    queued: int
    restarts: int
    metadata: dict[str, Any] = {}


class WorkspaceInfo(msgspec.Struct, kw_only=True):
    """A workspace. Times are ISO 8601 in UTC.

    Attributes:
        size, files: bytes on the disk and files with directories; null while a session has it.
        expires_at: when it is removed; null while a session has it.
        session_id: of the session that has it, or null.
    """

    name: str
    size: int | None = None
    files: int | None = None
    last_used_at: str
    expires_at: str | None = None
    session_id: str | None = None


class WorkspaceList(msgspec.Struct, kw_only=True):
    workspaces: list[WorkspaceInfo]


class SessionList(msgspec.Struct, kw_only=True):
    sessions: list[SessionInfo]


class ExecutionInfo(msgspec.Struct, kw_only=True):
    """An execution in a session's history.

    Attributes:
        accepted_at: ISO 8601, in UTC.
        packages: what it was to install; empty for a cell.
        success, error, execution_time: of its result; null until it has ended.
    """

    execution_id: str
    state: Literal["queued", "running", "done"]
    accepted_at: str
    packages: list[str] = []
    success: bool | None = None
    error: str | None = None
    execution_time: float | None = None


class ExecutionList(msgspec.Struct, kw_only=True):
    executions: list[ExecutionInfo]


class FileInfo(msgspec.Struct, kw_only=True, frozen=True):
    """Something in the workspace. `path` is relative to `/data`; `modified_at` is ISO 8601, in UTC.

    `size` is in bytes. A name that is no UTF-8 has its odd bytes as lone surrogates (PEP 383).
    """

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    modified_at: str


class FileList(msgspec.Struct, kw_only=True, frozen=True):
    """What is in a directory, by path; `truncated` where there is more than fits."""

    entries: list[FileInfo]
    truncated: bool = False


class VariableList(msgspec.Struct, kw_only=True, frozen=True):
    """What a session holds, oldest first; `dropped` older ones are not listed."""

    variables: list[Variable]
    dropped: int = 0


class ErrorBody(msgspec.Struct, kw_only=True, omit_defaults=True):
    code: str
    message: str
    request_id: str | None = None
    retry_after: float | None = None
    findings: list[Finding] = []
    confirmation: str | None = None
    expires_in: float | None = None


class ErrorEnvelope(msgspec.Struct, kw_only=True):
    """The body of every answer that is an error."""

    error: ErrorBody


# Operations, from the client.


class Open(SessionOptions, tag_field="op", tag="open"):
    pass


class Execute(ExecutionRequest, tag_field="op", tag="execute"):
    """Run a cell. With `allow_stdin` the client answers `input` events; else `input()` is an error."""

    allow_stdin: bool = False
    op_id: OpId | None = None


class Interrupt(
    msgspec.Struct, tag_field="op", tag="interrupt", kw_only=True, forbid_unknown_fields=True
):
    """Raise KeyboardInterrupt in the running cell; waiting executions stay in line.

    With `execution_id` that execution alone is meant: one that waits is taken out of the line.
    """

    execution_id: Identifier | None = None
    op_id: OpId | None = None


class Restart(
    msgspec.Struct, tag_field="op", tag="restart", kw_only=True, forbid_unknown_fields=True
):
    """A fresh kernel; the files stay."""

    op_id: OpId | None = None


class Stdin(msgspec.Struct, tag_field="op", tag="stdin", kw_only=True, forbid_unknown_fields=True):
    """The answer to an `input` event."""

    execution_id: Identifier
    value: str
    op_id: OpId | None = None


class Resume(
    msgspec.Struct, tag_field="op", tag="resume", kw_only=True, forbid_unknown_fields=True
):
    """All events of an execution after `after`, then those to come."""

    execution_id: Identifier
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    op_id: OpId | None = None


class Close(msgspec.Struct, tag_field="op", tag="close", kw_only=True, forbid_unknown_fields=True):
    """End the session."""

    op_id: OpId | None = None


Operation: TypeAlias = Open | Execute | Interrupt | Restart | Stdin | Resume | Close


# Answers, from the broker, besides events.


class Opened(msgspec.Struct, tag_field="type", tag="opened", kw_only=True):
    session: SessionInfo


class Done(msgspec.Struct, tag_field="type", tag="done", kw_only=True):
    op: str
    op_id: str | None = None


class ErrorReply(msgspec.Struct, tag_field="type", tag="error", kw_only=True):
    """The operation was refused; with `execution_id`, that execution will have no events."""

    error: ErrorBody
    op: str | None = None
    op_id: str | None = None
    execution_id: str | None = None


class Closed(msgspec.Struct, tag_field="type", tag="closed", kw_only=True):
    """The session has ended; nothing more comes."""

    reason: str


Reply: TypeAlias = Opened | Done | ErrorReply | Closed
