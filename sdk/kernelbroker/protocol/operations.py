"""Operations on the project of a session: their names and their answer."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

OperationName: TypeAlias = Literal[
    "read",
    "list",
    "search",
    "edit",
    "apply_patch",
    "run_tests",
    "build",
    "run",
    "git_status",
    "git_diff",
    "git_log",
    "git_branch",
    "git_commit",
    "snapshot",
    "diff",
    "run_coding_agent",
    "git_bundle",
    "git_push",
    "git_create_pr",
    "browser_navigate",
    "browser_click",
    "browser_fill",
    "browser_text",
    "browser_screenshot",
    "browser_evaluate",
    "browser_download",
    "browser_close",
]

READING: frozenset[str] = frozenset(
    {"read", "list", "search", "git_status", "git_diff", "git_log", "snapshot", "diff"}
)
"""These change nothing, so that they can be repeated."""
CHANGING: frozenset[str] = frozenset(
    {"edit", "apply_patch", "git_branch", "git_commit", "git_bundle"}
)
"""These change files and run no code of the project."""
FORGE: frozenset[str] = frozenset({"git_push", "git_create_pr"})
"""These reach a forge that the operator lists."""
RUNNING: frozenset[str] = frozenset({"run_tests", "build", "run", "run_coding_agent"})
"""These run code of the project, as executions of the session."""
BROWSING: frozenset[str] = frozenset(
    {
        "browser_navigate",
        "browser_click",
        "browser_fill",
        "browser_text",
        "browser_screenshot",
        "browser_evaluate",
        "browser_download",
        "browser_close",
    }
)
"""Actions of the sandbox's browser, as executions of the session."""
TEST_OUTPUT_MIME = "application/vnd.kernelbroker.test-output+json"
"""Of the display events of `run_tests`: ``{"tests": [{"test", "outcome", "seconds"}], "passed",
"failed", "errors",
"skipped"}``: the tests that have ended since the last one, and the numbers so far."""
AGENT_EVENT_MIME = "application/vnd.kernelbroker.agent-event+json"
"""Of the display events of `run_coding_agent`, each of which is one event of the agent, with its `type`."""
AGENT_EVENT_TYPES: frozenset[str] = frozenset(
    {"plan", "step_start", "code_operation", "observation", "agent_event"}
)
AGENT_UNAVAILABLE: frozenset[str] = frozenset({"agent_missing", "agent_failed", "no_model"})
"""The codes of errors after which another agent can do the task: nothing was done."""
FAILED = "failed"
"""The code of tests, builds and commands that ran and failed, and of git's failures."""


class CodeOperationResponse(msgspec.Struct, omit_defaults=True):
    """The answer of an operation.

    Attributes:
        success: false if it was refused, or if tests, a build or a command failed.
        result: its fields depend on the operation. It is also there for tests and commands that failed.
        error: what went wrong, and what to do next.
        code: of the error: `security`, `not_found`, `stale`, `no_match`, `timeout`, `failed` and so on.
        execution_id: of the execution, for operations that run code.
        stdout, stderr: its output.
        screenshot, screenshot_mime: the page after an action of the browser, in base64. In a stream of
            events it is an event of its own.
    """

    success: bool
    result: Any = None
    error: str | None = None
    execution_time_ms: int | None = None
    code: str | None = None
    execution_id: str | None = None
    stdout: str = ""
    stderr: str = ""
    screenshot: str | None = None
    screenshot_mime: str | None = None
