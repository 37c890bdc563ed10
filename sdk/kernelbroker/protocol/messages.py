"""Requests of clients, and the broker's replies besides events.

The same structs serve REST bodies and WebSocket operations. The broker refuses unknown fields
(`forbid_unknown_fields`), so that a misspelt option is reported; a client ignores them.

On the WebSocket the first message is `open`; the answer is `opened`. After it `execute`, `interrupt`,
`restart`, `stdin`, `resume` and `close` may come at any time. An operation is answered by its events
(`execute`, `resume`), by `done` (the others), or by `error`, each with the operation's `op_id`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from .events import MissingVariable as MissingVariable
from .events import Variable
from .findings import Finding, Language
from .wrong_fields import IDENTIFIER_PATTERN

Identifier: TypeAlias = Annotated[str, msgspec.Meta(pattern=IDENTIFIER_PATTERN)]
"""An id that a client may choose: safe in a path (no `..`), a header and a log line (no newline)."""

OnError: TypeAlias = Literal["rollback", "rollback_all", "keep"]

OpId: TypeAlias = Annotated[str, msgspec.Meta(max_length=64)]


class SandboxLimits(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """Limits of one session that are lower than those of its template. Higher ones change nothing.

    Attributes:
        memory: bytes that all processes of the sandbox may use together.
        output: bytes of output that an execution may have.
        cpus: processors that they may use together.
        timeout: seconds that a cell may run.
        network: `none` takes the network away; it does not come back.
    """

    memory: Annotated[int, msgspec.Meta(gt=0)] | None = None
    output: Annotated[int, msgspec.Meta(gt=0)] | None = None
    cpus: Annotated[float, msgspec.Meta(gt=0)] | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    network: Literal["none"] | None = None


WorkspaceLayout: TypeAlias = Literal["agent", "analysis"]
"""Directories that a workspace begins with. docs/agents.md lists them."""


class ProjectOptions(msgspec.Struct, kw_only=True, frozen=True, forbid_unknown_fields=True):
    """The project of a session, at /workspace/project. It has either a path or the URL of a repository.

    Attributes:
        path: a directory of the broker's host, below one that the operator lists. It is mounted.
        git: the URL of a git repository, which is cloned through the template's allow list.
        ref: the branch or tag to check out; the repository's default if absent.
        depth: clone only so many commits.
        read_only: mount the path read-only although the operator allows writing.
    """

    path: Annotated[str, msgspec.Meta(max_length=4096)] | None = None
    git: Annotated[str, msgspec.Meta(max_length=2000)] | None = None
    ref: Annotated[str, msgspec.Meta(max_length=200)] | None = None
    depth: Annotated[int, msgspec.Meta(ge=1)] | None = None
    read_only: bool = False


class SessionOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options of a new session.

    Attributes:
        session_id: reuse the session with this id, or open a new one with it.
        template: the name of the template.
        workspace: use the files of this workspace, and keep them there; the session's id if
            absent. One session at a time can have it.
        workspace_retention: seconds to keep the workspace after the session, if less than the
            broker's setting. With 0 the workspace is removed, unless `workspace` names it.
        env: environment variables of the kernel.
        secrets: environment variables whose values are masked in the output of all executions. At most 100,
            with 65,536 characters and 2,000 lines together.
        cwd: working directory inside the sandbox; relative to `/data`.
        metadata: notes of the client, returned with the session.
        idle_timeout: seconds without an execution after which the session closes.
        max_lifetime: seconds after which it closes in any case.
        on_expiry: what happens when one of these times is over: the session closes, or sleeps until it is
            used again. It sleeps even if some of its variables cannot be saved.
        from_checkpoint: begin with the variables and the files of this checkpoint.
        layout: directories and files to make in the workspace, where they are missing.
        limits: limits that are lower than those of the template.
        project: an absolute path of the broker's host, or the URL of a git repository, or more about one
            of them.
        language: that of cells which name none: `python`, `javascript` or `shell` (also `bash`).
        on_error: that of cells which name none, `rollback` if absent; see `ExecutionRequest`.
        context_of: open a context of this session: one more kernel in its sandbox, with variables and an
            order of its own. It shares the files, the environment, the limits and the end of that
            session, so only `session_id`, `metadata`, `cwd`, `language` and `on_error` may be given.
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
    on_expiry: Literal["close", "sleep"] = "close"
    from_checkpoint: Identifier | None = None
    layout: WorkspaceLayout | None = None
    limits: SandboxLimits = SandboxLimits()
    language: Annotated[str, msgspec.Meta(max_length=64)] = "python"
    on_error: OnError | None = None
    context_of: Identifier | None = None
    project: Annotated[str, msgspec.Meta(max_length=4096)] | ProjectOptions | None = None

    def options(self) -> SessionOptions:
        """Return only these options, without the fields of a subclass such as `Open`."""
        return msgspec.convert(self, SessionOptions, from_attributes=True)


class ExecutionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One cell to run.

    Attributes:
        execution_id: the client's own id, unique in the session; made by the broker if absent.
        language: `python`, `javascript` or `shell`; that of the session if absent.
        timeout: seconds from the kernel taking the cell to its interruption.
        cwd, env: for this execution only; restored after it.
        secrets: as `env`, with values that are masked in all that the execution brings.
        result_var: a variable to report: a table as `dataframe`, anything else as `return_value`.
        preview_rows: rows of the table to send.
        on_error: what happens to the names that a failed cell created. `rollback` removes data and
            keeps what `import`, `def` and `class` statements bound; `rollback_all` removes every new
            name; `keep` removes none. That of the session if absent.
        on_disconnect: whether the cell runs on or is interrupted when its client goes away.
        confirm: the token of a `confirmation_required` that this very cell was refused with.
        callback_url: a webhook of an allowed host that gets the result by POST.
        template: run in a sandbox of this template, in a session whose template is `auto`.
    """

    code: str
    execution_id: Identifier | None = None
    language: Language | None = None
    timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    cwd: str | None = None
    env: dict[str, str] = {}
    secrets: dict[str, str] = {}
    result_var: Annotated[str, msgspec.Meta(max_length=256)] | None = None
    preview_rows: Annotated[int, msgspec.Meta(ge=0)] = 10
    on_error: OnError | None = None
    on_disconnect: Literal["continue", "interrupt"] = "continue"
    confirm: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    callback_url: Annotated[str, msgspec.Meta(max_length=2000)] | None = None
    template: str | None = None

    def request(self) -> ExecutionRequest:
        """Return only this request, without the fields of a subclass such as `Execute`."""
        return msgspec.convert(self, ExecutionRequest, from_attributes=True)


class AssessmentRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Code to assess without running it.

    Attributes:
        language: `python`, `javascript`, `shell` or `browser`, whose code is an action. An unknown one
            is `high`.
        params: the parameters of a browser's action.
    """

    code: str
    language: Annotated[str, msgspec.Meta(max_length=64)] = "python"
    params: dict[str, Any] = {}


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


class ForkOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options of a fork. What is absent is as in the session that is forked, but for `session_id`.

    The fork has a workspace of its own: `workspace` names it, by default after the session. Environment
    variables and secrets are those of the session.

    Attributes:
        mode: as that of a checkpoint. If absent, `process` where the session's processes can be saved.
    """

    session_id: Identifier | None = None
    mode: CheckpointMode | None = None
    template: str | None = None
    workspace: Identifier | None = None
    workspace_retention: Annotated[float, msgspec.Meta(ge=0)] | None = None
    metadata: dict[str, Any] | None = None
    idle_timeout: Annotated[float, msgspec.Meta(gt=0)] | None = None
    max_lifetime: Annotated[float, msgspec.Meta(gt=0)] | None = None


CheckpointMode: TypeAlias = Literal["values", "process"]


class CheckpointRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Save a session under a name. An earlier checkpoint with this name is replaced.

    Attributes:
        mode: `values` saves each variable by itself, and the files. `process` saves the living processes
            whole, and the files: also generators, threads and open files. It needs a template with
            `process_checkpoints`, and is refused while a cell runs.
    """

    name: Identifier
    mode: CheckpointMode = "values"


class SavedVariable(msgspec.Struct, kw_only=True, frozen=True):
    """A variable in a checkpoint.

    Attributes:
        size: bytes; 0 if it is saved together with the one before, since they share objects.
        form: `module`, `npy`, `arrow`, `pickle` or `source`.
    """

    name: str
    type: str
    size: int
    form: str


class CheckpointSummary(msgspec.Struct, kw_only=True):
    """A checkpoint. Times are in UTC (ISO 8601 in JSON).

    Attributes:
        mode: `values` or `process`.
        size: bytes of variables and files, or of processes and files.
        session_id, template: of the session that was saved.
        python: the version that saved it. Functions and classes need the same minor version. Empty if
            processes are saved.
        complete: nothing is missing.
    """

    name: str
    mode: str
    size: int
    created_at: datetime
    expires_at: datetime | None = None
    session_id: str
    template: str
    python: str
    complete: bool


class CheckpointInfo(CheckpointSummary, kw_only=True):
    """A checkpoint with its content.

    Attributes:
        variables: what is saved; `dropped` more are not listed. Empty if processes are saved.
        missing: what is not saved, with the reasons.
        env: the names of the environment variables of the session; values are not saved.
    """

    variables: list[SavedVariable] = []
    dropped: int = 0
    missing: list[MissingVariable] = []
    env: list[str] = []


class CheckpointList(msgspec.Struct, kw_only=True):
    checkpoints: list[CheckpointSummary]


class ContextOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options of a new context: one more kernel in the sandbox of a session.

    Attributes:
        context_id: reuse the context with this id, or open a new one with it.
        language: that of cells which name none: `python`, `javascript` or `shell` (also `bash`).
        cwd: working directory, relative to `/data`; that of the session if absent.
        on_error: that of cells which name none; that of the session if absent.
        metadata: notes of the client, returned with the context.
    """

    context_id: Identifier | None = None
    language: Annotated[str, msgspec.Meta(max_length=64)] = "python"
    cwd: str | None = None
    on_error: OnError | None = None
    metadata: dict[str, Any] = {}


SessionState: TypeAlias = Literal["idle", "busy", "asleep", "closed"]


class SessionInfo(msgspec.Struct, kw_only=True):
    """The description of a session. Times are in UTC (ISO 8601 in JSON); durations are seconds.

    Attributes:
        workspace_warning: what is not saved of the workspace, or was lost with a machine, and why; or null.
        language, on_error, cwd: those of cells which name none. `cwd` is as it was given.
        context_of: the session that this one is a context of, or null.
        contexts: how many contexts it has.
        from_checkpoint: the checkpoint that it began with, or null.
        not_restored: what could not be loaded when it began or woke.
        kept_awake_by: what could not be saved, so that it did not fall asleep when it was due.
        runs_in: the template of its present sandbox, if `template` is `auto`.
    """

    session_id: str
    state: SessionState
    template: str
    workspace: str = ""
    workspace_warning: str | None = None
    isolation: str
    created_at: datetime
    last_active_at: datetime
    idle_timeout: float
    max_lifetime: float
    executions: int
    queued: int
    restarts: int
    metadata: dict[str, Any] = {}
    language: Language = "python"
    on_error: OnError = "rollback"
    cwd: str | None = None
    context_of: str | None = None
    contexts: int = 0
    from_checkpoint: str | None = None
    not_restored: list[MissingVariable] = []
    kept_awake_by: list[MissingVariable] = []
    runs_in: str | None = None


class WorkspaceInfo(msgspec.Struct, kw_only=True):
    """A workspace. Times are in UTC (ISO 8601 in JSON).

    Attributes:
        size, files: bytes on the disk and files with directories; null while a session has it.
        expires_at: when it is removed; null while a session has it.
        session_id: of the session that has it, or null.
    """

    name: str
    size: int | None = None
    files: int | None = None
    last_used_at: datetime
    expires_at: datetime | None = None
    session_id: str | None = None


class WorkspaceOptions(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The options of a workspace that is made without a session.

    Attributes:
        max_size: bytes that it may hold, if less than the broker's setting.
        retention: seconds to keep it after its last use, if less than the broker's setting.
        layout: directories and files to make, where they are missing.
    """

    max_size: Annotated[int, msgspec.Meta(gt=0)] | None = None
    retention: Annotated[float, msgspec.Meta(gt=0)] | None = None
    layout: WorkspaceLayout | None = None


class WorkspaceDetails(WorkspaceInfo, kw_only=True):
    """A workspace, and where it is.

    Attributes:
        host_path: its path on the broker's machine; null if the request did not come from that machine.
        machine: identifies the broker's machine until it is started again; null without `host_path`.
    """

    host_path: str | None = None
    machine: str | None = None


class WorkspaceList(msgspec.Struct, kw_only=True):
    workspaces: list[WorkspaceInfo]


class SessionList(msgspec.Struct, kw_only=True):
    sessions: list[SessionInfo]


class ExecutionInfo(msgspec.Struct, kw_only=True):
    """An execution in a session's history.

    Attributes:
        session_id: of its session, which may have ended.
        accepted_at: in UTC (ISO 8601 in JSON).
        packages: the packages to install; empty for a cell.
        success, error, execution_time: of its result; null until it has ended.
        client: what it came through: `sdk`, `mcp`, `e2b`, `jupyter`, `console`, `rest`.
        user: the name or the id of the token.
    """

    execution_id: str
    session_id: str = ""
    state: Literal["queued", "running", "done"]
    accepted_at: datetime
    packages: list[str] = []
    success: bool | None = None
    error: str | None = None
    execution_time: float | None = None
    client: str = ""
    user: str = ""


class ExecutionList(msgspec.Struct, kw_only=True):
    executions: list[ExecutionInfo]


class FileInfo(msgspec.Struct, kw_only=True, frozen=True):
    """An entry of the workspace. `path` is relative to `/data`; `modified_at` is in UTC.

    `size` is in bytes. Bytes of a name that are not UTF-8 are lone surrogates (PEP 383).
    """

    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int
    modified_at: datetime


class FileList(msgspec.Struct, kw_only=True, frozen=True):
    """The entries of a directory, sorted by path; `truncated` if there are more than the limit."""

    entries: list[FileInfo]
    truncated: bool = False


class VariableList(msgspec.Struct, kw_only=True, frozen=True):
    """The variables of a session, oldest first; `dropped` older ones are not listed."""

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
    """The body of every answer with an error."""

    error: ErrorBody


# Operations, from the client.


class Open(SessionOptions, tag_field="op", tag="open", omit_defaults=True):
    """Open the session with this id, or a new one.

    With `created_at`, only the session that was opened then: a client that connects again names the one it
    knows, and learns why that has ended instead of getting a new one.
    """

    created_at: datetime | None = None


class Execute(ExecutionRequest, tag_field="op", tag="execute"):
    """Run a cell. With `allow_stdin` the client answers `input` events; otherwise `input()` is an error."""

    allow_stdin: bool = False
    op_id: OpId | None = None


class Interrupt(
    msgspec.Struct, tag_field="op", tag="interrupt", kw_only=True, forbid_unknown_fields=True
):
    """Raise KeyboardInterrupt in the running cell; waiting executions stay queued.

    With `execution_id`, interrupt only that execution. A waiting one is taken out of the queue.
    """

    execution_id: Identifier | None = None
    op_id: OpId | None = None


class Restart(
    msgspec.Struct, tag_field="op", tag="restart", kw_only=True, forbid_unknown_fields=True
):
    """Replace the kernel. Variables are lost; files are kept."""

    op_id: OpId | None = None


class Stdin(msgspec.Struct, tag_field="op", tag="stdin", kw_only=True, forbid_unknown_fields=True):
    """The answer to an `input` event."""

    execution_id: Identifier
    value: str
    op_id: OpId | None = None


class Resume(
    msgspec.Struct, tag_field="op", tag="resume", kw_only=True, forbid_unknown_fields=True
):
    """Send the events of an execution after `after`, then new ones as they come."""

    execution_id: Identifier
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    op_id: OpId | None = None


class Close(msgspec.Struct, tag_field="op", tag="close", kw_only=True, forbid_unknown_fields=True):
    """End the session.

    Attributes:
        when_idle: let the executions that it has accepted end first. The answer does not wait for that.
    """

    op_id: OpId | None = None
    when_idle: bool = False


Operation: TypeAlias = Open | Execute | Interrupt | Restart | Stdin | Resume | Close


# Answers, from the broker, besides events.


class Opened(msgspec.Struct, tag_field="type", tag="opened", kw_only=True):
    """The session is open.

    Attributes:
        is_new: it was opened for this connection; otherwise it was there.
    """

    session: SessionInfo
    is_new: bool = True


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
    """The session has ended; no message follows."""

    reason: str


Reply: TypeAlias = Opened | Done | ErrorReply | Closed
