"""The tools of the set `project`: operations on a project in a session's sandbox."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from kernelbroker.protocol.events import Display, Result, Stderr, Stdout
from kernelbroker.protocol.operations import (
    AGENT_EVENT_MIME,
    FAILED,
    RUNNING,
    TEST_OUTPUT_MIME,
    CodeOperationResponse,
)
from pydantic import Field

from ..service import code_operations
from .answers import MAX_CHARS, answer, failure
from .call import Call
from .tool import InSession, Output, ToolResult, ToolSpec, hints

_Path = Annotated[str, Field(max_length=4096)]


class OperationOutput(Output):
    """The answer of an operation."""

    success: bool
    result: dict[str, Any] | None = None
    error: str | None = None
    execution_time_ms: int | None = None
    output: str | None = None
    """What was printed: its end, if it is long."""


class Read(InSession):
    path: _Path
    """Relative to the project."""
    start: int | None = None
    """The first line, from 1."""
    end: int | None = None
    """The last line."""


async def code_read(call: Call, args: Read) -> ToolResult:
    """Read lines of a text file of the project, with their numbers. `sha256` is the base of an edit."""
    return await _operate(call, args, "read")


class List(InSession):
    path: _Path = "."
    """A directory of the project."""
    glob: str | None = None
    """Such as *.py."""
    depth: int = 1


async def code_list(call: Call, args: List) -> ToolResult:
    """List files and directories of the project."""
    return await _operate(call, args, "list")


class Search(InSession):
    pattern: str
    """A regular expression, as ripgrep takes it."""
    path: _Path = "."
    glob: str | None = None
    context: int = 0
    """Lines before and after each match."""
    regex: bool = True
    """False takes the pattern literally."""
    max: int = 100


async def code_search(call: Call, args: Search) -> ToolResult:
    """Search the files of the project with ripgrep."""
    return await _operate(call, args, "search")


class Edit(InSession):
    path: _Path
    content: str | None = None
    """The whole new content; or else give old and new."""
    old: str | None = None
    """The exact text to replace."""
    new: str | None = None
    count: int = 1
    """How often old occurs."""
    base: str | None = None
    """The sha256 that code_read returned: the edit is refused if the file has changed since."""


async def code_edit(call: Call, args: Edit) -> ToolResult:
    """Write a file of the project, or replace a text in it. Returns the diff."""
    return await _operate(call, args, "edit")


class Patch(InSession):
    diff: str
    """A unified diff with paths relative to the project."""


async def code_apply_patch(call: Call, args: Patch) -> ToolResult:
    """Apply a unified diff to the project: all of it, or nothing."""
    return await _operate(call, args, "apply_patch")


class RunTests(InSession):
    target: str | None = None
    """A file, a directory, or a test; all tests if it is left out."""
    framework: Literal["auto", "pytest", "unittest", "node", "jest", "vitest", "go"] = "auto"
    timeout: float | None = None
    """In seconds."""


async def run_tests(call: Call, args: RunTests) -> ToolResult:
    """Run the tests of the project, with each failure's file, line, message and output."""
    return await _operate(call, args, "run_tests")


class RunBuild(InSession):
    command: str | None = None
    """By default the command that the project's files suggest."""
    timeout: float | None = None
    """In seconds."""


async def run_build(call: Call, args: RunBuild) -> ToolResult:
    """Build the project."""
    return await _operate(call, args, "build")


class RunCommand(InSession):
    command: str
    """A line for the shell."""
    timeout: float | None = None
    """In seconds."""


async def run_command(call: Call, args: RunCommand) -> ToolResult:
    """Run a shell command in the project's directory."""
    return await _operate(call, args, "run")


class GitCommit(InSession):
    message: str
    paths: list[str] | None = None
    """All changes, if they are left out."""


async def git_commit(call: Call, args: GitCommit) -> ToolResult:
    """Commit changes of the project."""
    return await _operate(call, args, "git_commit")


class RunCodingAgent(InSession):
    task: str = Field(max_length=30_000)
    """What the agent is to do."""
    agent: Literal["claude-code", "gemini-cli", "opencode"] | None = None
    """By default the agent of the sandbox."""
    model: str | None = None
    """By default that of the agent."""
    tests: bool = True
    """Whether the tests run afterwards."""
    timeout: float | None = None
    """In seconds, for the agent and the tests."""


async def run_coding_agent(call: Call, args: RunCodingAgent) -> ToolResult:
    """Let a coding agent in the sandbox work on the project. Returns its diff, and how the tests ended."""
    return await _operate(call, args, "run_coding_agent")


class GitCreatePr(InSession):
    title: str
    body: str = ""
    base: str | None = None
    """The branch to merge into; the repository's default one, if it is left out."""


async def git_create_pr(call: Call, args: GitCreatePr) -> ToolResult:
    """Push the current branch, and open a pull request for it."""
    return await _operate(call, args, "git_create_pr")


async def _operate(call: Call, args: InSession, name: str) -> ToolResult:
    session = await call.session(args.session_id)
    parameters = args.model_dump(exclude={"session_id"}, exclude_none=True)
    output = ""
    if name in RUNNING:
        log = await code_operations.submit(call.tenant.executions, session, name, parameters)
        response = CodeOperationResponse(success=False, error="the execution has no result")
        async for stored in log.follow():
            match stored.event:
                case Stdout(content=text) | Stderr(content=text):
                    output = (output + text)[-MAX_CHARS:]
                    await call.report(text[:MAX_CHARS])
                case Display(data={**data}) if isinstance(data.get(AGENT_EVENT_MIME), dict):
                    if shown := _shown(data[AGENT_EVENT_MIME]):
                        await call.report(shown)
                case Display(data={**data}) if isinstance(data.get(TEST_OUTPUT_MIME), dict):
                    seen = data[TEST_OUTPUT_MIME]
                    await call.report(f"{seen.get('passed')} passed, {seen.get('failed')} failed")
                case Result() as ended:
                    response = code_operations.response_of(ended)
    else:
        response = await code_operations.operate(session, name, parameters, call.tenant.forges)
    if not response.success and response.code != FAILED:
        return failure(response.error or "it failed", response.code or FAILED, session.id)
    result = response.result if isinstance(response.result, dict) else None
    structured = OperationOutput(
        session_id=session.id,
        success=response.success,
        result=result,
        error=response.error,
        execution_time_ms=response.execution_time_ms,
        output=output or None,
    )
    return answer(_text(response, result or {}, output), structured, is_error=not response.success)


def _shown(event: dict[str, Any]) -> str:
    """An event of a coding agent as progress; empty if it is not worth a line."""
    what = {"step_start": "text", "code_operation": "tool"}.get(str(event.get("type")), "")
    return str(event.get(what, ""))[:1_000]


def _text(response: CodeOperationResponse, result: dict[str, Any], output: str) -> str:
    """What the model reads."""
    if "outcome" in result:  # of a coding agent; the tests' output is in its result
        told = {name: result.get(name) for name in ("agent", "outcome", "files", "tests")}
        head = json.dumps(told, ensure_ascii=False)
        parts = [result.get("text"), head, response.error, result.get("diff")]
        text = "\n".join(str(part) for part in parts if part)
        return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n[cut]"
    main = next((result[name] for name in ("content", "diff") if result.get(name)), None)
    if not isinstance(main, str):
        main = json.dumps(result, ensure_ascii=False)
    parts = [output, main if not output or "failures" in result else "", response.error or ""]
    text = "\n".join(part for part in parts if part) or "done"
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}\n[cut: ask for less of it]"


PROJECT_TOOLS = (
    ToolSpec("code_read", "Read", Read, OperationOutput, code_read, hints(read_only=True)),
    ToolSpec("code_list", "List", List, OperationOutput, code_list, hints(read_only=True)),
    ToolSpec("code_search", "Search", Search, OperationOutput, code_search, hints(read_only=True)),
    ToolSpec("code_edit", "Edit", Edit, OperationOutput, code_edit, hints(destructive=True)),
    ToolSpec(
        "code_apply_patch",
        "Apply a patch",
        Patch,
        OperationOutput,
        code_apply_patch,
        hints(destructive=True),
    ),
    ToolSpec("run_tests", "Run tests", RunTests, OperationOutput, run_tests, hints()),
    ToolSpec("run_build", "Build", RunBuild, OperationOutput, run_build, hints()),
    ToolSpec(
        "run_command",
        "Run a command",
        RunCommand,
        OperationOutput,
        run_command,
        hints(destructive=True, open_world=True),
    ),
    ToolSpec("git_commit", "Commit", GitCommit, OperationOutput, git_commit, hints()),
    ToolSpec(
        "run_coding_agent",
        "Run a coding agent",
        RunCodingAgent,
        OperationOutput,
        run_coding_agent,
        hints(destructive=True, open_world=True),
    ),
    ToolSpec(
        "git_create_pr",
        "Open a pull request",
        GitCreatePr,
        OperationOutput,
        git_create_pr,
        hints(open_world=True),
    ),
)
