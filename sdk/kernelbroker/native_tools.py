"""The tools of the native coding agent: the operations of `session.code`, described for models."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from .protocol.operations import CodeOperationResponse

MAX_CHARS = 20_000
"""Of what a model is told."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool.

    Attributes:
        operation: the operation that it calls, with the same parameters.
        input_schema: the JSON schema of its parameters.
    """

    name: str
    operation: str
    description: str
    input_schema: dict[str, Any]

    def described(self) -> dict[str, Any]:
        """As models are told, in Anthropic's form."""
        return {
            "name": self.name,
            "description": self.description,
            "input_schema": self.input_schema,
        }


def _tool(name: str, operation: str, description: str, *required: str, **fields: str) -> Tool:
    """A tool; a field is described by its type and, behind a colon, its meaning."""
    properties: dict[str, Any] = {}
    for field, text in fields.items():
        kind, _, meaning = text.partition(": ")
        properties[field] = {"type": kind} | ({"description": meaning} if meaning else {})
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return Tool(name, operation, description, schema | {"additionalProperties": False})


_TOOLS = (
    _tool(
        "code_read",
        "read",
        "Read lines of a text file of the project, with their numbers.",
        "path",
        path="string: relative to the project",
        start="integer: the first line, from 1",
        end="integer: the last line",
    ),
    _tool(
        "code_list",
        "list",
        "List files and directories of the project.",
        path="string: a directory",
        glob="string: such as *.py",
        depth="integer",
    ),
    _tool(
        "code_search",
        "search",
        "Search the files of the project with ripgrep.",
        "pattern",
        pattern="string: a regular expression",
        path="string",
        glob="string",
        context="integer: lines around each match",
        regex="boolean: false takes the pattern literally",
        max="integer",
    ),
    _tool(
        "code_edit",
        "edit",
        "Write a file (content), or replace an exact text in it (old and new), which occurs count times.",
        "path",
        path="string",
        content="string: the whole new content",
        old="string",
        new="string",
        count="integer",
    ),
    _tool(
        "code_apply_patch",
        "apply_patch",
        "Apply a unified diff: all of it, or nothing.",
        "diff",
        diff="string",
    ),
    _tool(
        "run_tests",
        "run_tests",
        "Run the tests of the project.",
        target="string: a file, a directory, or a test; all tests if it is left out",
    ),
    _tool("run_build", "build", "Build the project.", command="string: if it is not the usual one"),
    _tool(
        "run_command",
        "run",
        "Run a shell command in the project's directory.",
        "command",
        command="string",
    ),
)
TOOLS: dict[str, Tool] = {tool.name: tool for tool in _TOOLS}


def told(answer: CodeOperationResponse) -> str:
    """An answer as the model reads it."""
    result = answer.result if isinstance(answer.result, dict) else {}
    main = next((result[name] for name in ("content", "diff") if result.get(name)), None)
    if not isinstance(main, str):
        main = json.dumps(result, ensure_ascii=False)
    parts = [answer.stdout[-MAX_CHARS:], answer.stderr[-MAX_CHARS:], main, answer.error or ""]
    return cut("\n".join(part for part in parts if part))


def cut(text: str) -> str:
    """A text of at most so many characters: its beginning and its end."""
    if len(text) <= MAX_CHARS:
        return text
    half = MAX_CHARS // 2
    return f"{text[:half]}\n[{len(text) - MAX_CHARS:,} characters are left out]\n{text[-half:]}"
