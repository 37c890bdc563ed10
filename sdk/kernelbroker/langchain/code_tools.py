"""LangChain tools for operations on the project of a session."""

from __future__ import annotations

from typing import Any

import msgspec
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from pydantic import BaseModel, Field, create_model

from ..client import Broker
from ..code_errors import CodeOperationError
from ..protocol.codec import encode
from ..protocol.errors import KernelBrokerError
from .sessions import SessionChoice, chosen_id, opened, run_sync

MAX_CHARS = 40_000
"""Of an answer."""

_Fields = dict[str, tuple[Any, Any]]


def _text(description: str) -> tuple[Any, Any]:
    return str, Field(description=description)


def _optional(kind: Any, default: Any, description: str) -> tuple[Any, Any]:
    return kind | None, Field(default=default, description=description)


_TIMEOUT = _optional(float, None, "In seconds.")
_PATH = _text("Relative to the project.")
_TOOLS: dict[str, tuple[str, str, _Fields]] = {
    "code_read": (
        "read",
        "Read lines of a text file of the project, with their numbers.",
        {
            "path": _PATH,
            "start": _optional(int, None, "The first line."),
            "end": _optional(int, None, "The last line."),
        },
    ),
    "code_list": (
        "list",
        "List files and directories of the project.",
        {
            "path": _optional(str, ".", "A directory."),
            "glob": _optional(str, None, "Such as *.py."),
            "depth": _optional(int, 1, "How deep."),
        },
    ),
    "code_search": (
        "search",
        "Search the files of the project with ripgrep.",
        {
            "pattern": _text("A regular expression."),
            "path": _optional(str, ".", "A file or directory."),
            "glob": _optional(str, None, "Such as *.py."),
            "context": _optional(int, 0, "Lines around each match."),
            "regex": _optional(bool, True, "False takes the pattern literally."),
            "max": _optional(int, 100, "Matches."),
        },
    ),
    "code_edit": (
        "edit",
        "Write a file of the project (content), or replace an exact text in it (old and new).",
        {
            "path": _PATH,
            "content": _optional(str, None, "The whole new content."),
            "old": _optional(str, None, "The exact text to replace."),
            "new": _optional(str, None, "What replaces it."),
            "count": _optional(int, 1, "How often old occurs."),
            "base": _optional(str, None, "The sha256 of what was read."),
        },
    ),
    "code_apply_patch": (
        "apply_patch",
        "Apply a unified diff to the project: all of it, or nothing.",
        {"diff": _text("The diff.")},
    ),
    "run_tests": (
        "run_tests",
        "Run the tests of the project.",
        {
            "target": _optional(str, None, "A file, a directory, or a test."),
            "framework": _optional(str, "auto", "pytest, unittest, node, jest, vitest or go."),
            "timeout": _TIMEOUT,
        },
    ),
    "run_build": (
        "build",
        "Build the project.",
        {"command": _optional(str, None, "If it is not the usual one."), "timeout": _TIMEOUT},
    ),
    "run_command": (
        "run",
        "Run a shell command in the project's directory.",
        {"command": _text("A line for the shell."), "timeout": _TIMEOUT},
    ),
    "git_commit": (
        "git_commit",
        "Commit changes of the project.",
        {"message": _text("The message."), "paths": _optional(list[str], None, "Else all.")},
    ),
    "git_create_pr": (
        "git_create_pr",
        "Push the current branch, and open a pull request for it.",
        {
            "title": _text("The title."),
            "body": _optional(str, "", "What it changes, and why."),
            "base": _optional(str, None, "The branch to merge into, if not the default one."),
        },
    ),
}


def get_code_operations_tools(
    broker: Broker, session: SessionChoice = None
) -> list[StructuredTool]:
    """Return the tools that work on the project of a session.

    They are `code_read`, `code_list`, `code_search`, `code_edit`, `code_apply_patch`, `run_tests`,
    `run_build`, `run_command`, `git_commit` and `git_create_pr`.
    Each answers with the JSON of `{success, result, error, code, execution_time_ms, stdout, stderr}`.

    Args:
        session: as for `create_sandbox_tools`. The session must have a project: `session.code.upload`.
    """
    if not isinstance(broker, Broker):
        raise TypeError(
            "broker is what kernelbroker.connect() returns; the tools are sync and async"
        )

    def tool(name: str, operation: str, description: str, fields: _Fields) -> StructuredTool:
        schema: type[BaseModel] = create_model(name, **fields)  # type: ignore[call-overload]

        async def coroutine(config: RunnableConfig, **arguments: Any) -> str:
            async with opened(broker, chosen_id(session, config)) as found:
                given = {key: value for key, value in arguments.items() if value is not None}
                try:
                    answer = msgspec.to_builtins(await found.code.execute(operation, given))
                except CodeOperationError as exc:
                    answer = {"success": False, "error": exc.message, "code": exc.code}
                except KernelBrokerError as exc:
                    answer = {"success": False, "error": str(exc)}
                for stream in ("stdout", "stderr"):
                    if stream in answer:
                        answer[stream] = answer[stream][-MAX_CHARS // 4 :]
                text = encode(answer).decode()
                if len(text) > MAX_CHARS:
                    text = f"{text[:MAX_CHARS]} [cut: ask for less of it]"
                return text

        def func(config: RunnableConfig, **arguments: Any) -> str:
            return run_sync(coroutine(config, **arguments))

        return StructuredTool.from_function(
            func=func, coroutine=coroutine, name=name, description=description, args_schema=schema
        )

    return [tool(name, *described) for name, described in _TOOLS.items()]
