"""The events of a session for a front end: what an agent plans and does in it.

Operations on the project emit `code_operation`, `test_output` and `result`; the session itself emits
`sandbox_created` and `sandbox_ready`. A planner outside posts its own, of any type. `seq` starts at 1 in
each session and has no gaps; the oldest events are forgotten first.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal, TypeAlias

import msgspec

MAX_EVENT_BYTES = 64 * 1024
"""Of one event as JSON."""

Text: TypeAlias = Annotated[str, msgspec.Meta(max_length=MAX_EVENT_BYTES)]
Name: TypeAlias = Annotated[str, msgspec.Meta(max_length=4096)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class SessionEventBase(
    msgspec.Struct, tag_field="type", kw_only=True, omit_defaults=True, forbid_unknown_fields=True
):
    """The fields of all events.

    Attributes:
        seq, at: its number in the session, and when it was stored (UTC); set by the broker.
        source: `broker`, or the kind of client that posted it; set by the broker.
        data: anything else that its readers understand.
    """

    seq: int = 0
    at: datetime | None = None
    source: Annotated[str, msgspec.Meta(max_length=64)] = ""
    data: dict[str, Any] = {}


class SandboxCreated(SessionEventBase, tag="sandbox_created"):
    """A session was opened, and gets its sandbox."""

    sandbox_id: Name = ""
    template: Name = ""


class SandboxReady(SessionEventBase, tag="sandbox_ready"):
    """The sandbox accepts executions: the first one, or one in its place."""

    sandbox_id: Name = ""
    template: Name = ""


class Plan(SessionEventBase, tag="plan"):
    """The steps that are planned, in place of an earlier plan. A step is a text or an object."""

    steps: Annotated[list[Text | dict[str, Any]], msgspec.Meta(max_length=200)]


class StepStart(SessionEventBase, tag="step_start"):
    """A step begins. `step` is its number or its id in the plan."""

    step: int | Name
    title: Text = ""


class CodeOperation(SessionEventBase, tag="code_operation"):
    """An operation on the project begins. Its `result` has the same `operation_id`.

    Attributes:
        path, command: what it is about, if it names one.
        execution_id: of the execution, for operations that run code.
    """

    operation: Name
    operation_id: Name = ""
    path: Name = ""
    command: Text = ""
    execution_id: Name = ""


class Observation(SessionEventBase, tag="observation"):
    """What a planner or an agent has learned."""

    content: Text
    step: int | Name | None = None


class TestOutput(SessionEventBase, tag="test_output"):
    """Tests have ended. The numbers are those so far.

    Attributes:
        tests: the tests that have ended since the last event: `test`, `outcome`, `seconds`.
    """

    __test__ = False  # not for pytest

    operation_id: Name = ""
    execution_id: Name = ""
    content: Text = ""
    tests: Annotated[list[dict[str, Any]], msgspec.Meta(max_length=5_000)] = []
    passed: Count = 0
    failed: Count = 0
    errors: Count = 0
    skipped: Count = 0


class OperationResult(SessionEventBase, tag="result"):
    """An operation, or what an agent was asked for, has ended.

    Attributes:
        code: of the error.
        result: what the operation returned, as far as it is small.
    """

    success: bool
    operation: Name = ""
    operation_id: Name = ""
    execution_id: Name = ""
    content: Text = ""
    error: Text | None = None
    code: Name | None = None
    execution_time_ms: Count | None = None
    result: Any = None


SessionEvent: TypeAlias = (
    SandboxCreated
    | SandboxReady
    | Plan
    | StepStart
    | CodeOperation
    | Observation
    | TestOutput
    | OperationResult
)

SessionEventType: TypeAlias = Literal[
    "sandbox_created",
    "sandbox_ready",
    "plan",
    "step_start",
    "code_operation",
    "observation",
    "test_output",
    "result",
]


class SessionEventList(msgspec.Struct, kw_only=True):
    """The events that are stored; `last` is the `seq` of the latest one."""

    events: list[dict[str, Any]]
    last: int
