"""Coding agents in a sandbox: their events and how a run ended."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

AgentName: TypeAlias = Literal["claude-code", "gemini-cli", "opencode", "native"]
AgentEventType: TypeAlias = Literal[
    "plan",
    "step_start",
    "code_operation",
    "observation",
    "test_output",
    "stdout",
    "stderr",
    "agent_event",
    "fallback",
]
NATIVE = "native"


class AgentEvent(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Something that a coding agent did or said. It comes from a sandbox and is not trusted.

    Attributes:
        type: `plan` has `steps`; `step_start` a `text` of the model; `code_operation` the call of a tool;
            `observation` its answer; `test_output` the tests that have ended; `stdout` and `stderr` other
            output, as `text`; `fallback` the reason for going on with `native`; `agent_event` is
            anything else that the agent reports.
        agent: its name.
        step: the number of the step.
        text: of a message, of output, or the reason of a fallback.
        steps: of the plan, with `step` and `status`.
        operation: of ours that a tool corresponds to: `read`, `edit`, `search`, `list`, `run`, ...; None
            if none.
        tool: the agent's name for it.
        id: links a call and its observation.
        parameters: of the call; long texts are cut.
        content: what the tool answered; long texts are cut.
        is_error: whether the tool failed.
        tests: as in `test_output` of `run_tests`: `tests`, `passed`, `failed`, `errors`, `skipped`.
        raw: the agent's own event, cut.
    """

    type: AgentEventType
    agent: str = ""
    step: int | None = None
    text: str = ""
    steps: list[dict[str, str]] = []
    operation: str | None = None
    tool: str | None = None
    id: str | None = None
    parameters: Any = None
    content: str | None = None
    is_error: bool = False
    tests: dict[str, Any] | None = None
    raw: Any = None


class CodingAgentResult(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How the run of a coding agent ended.

    Attributes:
        success: whether the agent ended its task in order. The tests may fail nevertheless: see `tests`.
        agent: the agent that did the task.
        requested: the agent that was asked for; None if none was named.
        fallback: why `native` did the task instead; None if it was not instead.
        outcome: `completed`, `failed`, `timeout`, `turn_limit` or `output_limit`.
        text: the agent's last message.
        error: why it failed.
        diff: the changes as a patch, also those that the agent committed; None if there is none.
        diff_truncated: the diff is larger than can be sent; fetch the files.
        diff_note: why there is no diff.
        files: the paths that changed.
        tests: the outcome of the tests afterwards, as `run_tests` returns it, or `error` if they could
            not be run; None if they were not asked for.
        cost_usd: as far as the agent told it.
        usage: tokens: `input_tokens`, `output_tokens`, `cache_read_tokens`, `cache_write_tokens`.
        turns: answers of the model.
        model: its name.
        exit_code: of the agent's program.
        events, events_dropped: how many were sent, and how many were too large or too many.
        execution_id: of the execution that ran it; None for `native`.
        execution_time_ms: how long all of it took.
    """

    success: bool
    agent: str
    requested: str | None = None
    fallback: str | None = None
    outcome: str = "completed"
    text: str = ""
    error: str | None = None
    diff: str | None = None
    diff_truncated: bool = False
    diff_note: str | None = None
    files: list[str] = []
    files_truncated: bool = False
    tests: dict[str, Any] | None = None
    cost_usd: float | None = None
    usage: dict[str, int] = {}
    turns: int = 0
    model: str | None = None
    exit_code: int | None = None
    events: int = 0
    events_dropped: int = 0
    execution_id: str | None = None
    execution_time_ms: int | None = None
