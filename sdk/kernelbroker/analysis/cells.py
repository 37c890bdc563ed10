"""The cells of an analysis: what is sent to the sandbox, and what is expected back.

The first cell reads the inputs and reports their columns. The second is the user's code, unchanged and
from its first line on, so that line numbers are the user's; a call of its function follows it.
"""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, field, replace
from functools import cache
from hashlib import sha256
from importlib.resources import files
from typing import Any, Protocol

from ..result_text import join_blocks, output_texts, shorten
from ..results import ExecutionResult

MAX_TEXT_CHARS = 20_000
TIMEOUT = 30.0
"""Seconds for an analysis, by default."""


class Runner(Protocol):
    """What runs cells: a `Session` of the SDK, or a session of the broker."""

    @property
    def session_id(self) -> str: ...

    async def run(
        self, code: str, *, timeout: float | None = None, result_var: str | None = None
    ) -> ExecutionResult: ...


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the inputs: its name, size, columns with their dtypes, and first rows as records.

    Attributes:
        read: how the file was read: `encoding`, `separator`, `header_line` (from 1), `decimal`, `sheet`.
    """

    name: str
    rows: int
    width: int
    columns: list[str]
    dtypes: list[str]
    head: list[dict[str, Any]]
    read: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inputs:
    """The inputs in the sandbox, under a key.

    Attributes:
        error: why they cannot be read, or None.
        seconds: what reading took.
    """

    key: str
    tables: list[Table]
    error: str | None
    seconds: float


@dataclass(frozen=True, slots=True)
class Ran:
    """What the user's code did.

    Attributes:
        output: what it printed.
        report: of its result, as the harness makes it.
        error: the traceback, or None.
    """

    output: str
    report: dict[str, Any]
    error: str | None
    seconds: float
    result: ExecutionResult


@cache
def source_of(module: str) -> str:
    """The source of a module of this package that runs in the sandbox."""
    return files(__package__).joinpath(module).read_text(encoding="utf-8")


def is_harness(code: str) -> bool:
    """Whether a cell is the one that reads the inputs. It has no code of the user's."""
    return code.startswith(source_of("harness.py"))


async def load(runner: Runner, paths: list[str], timeout: float) -> Inputs:
    """Read the inputs in the sandbox.

    Args:
        paths: absolute, or relative to the working directory.
    """
    # The same inputs have the same key: a cell that was confirmed is the same when it is sent again.
    key = sha256("\n".join(paths).encode("utf-8", "surrogatepass")).hexdigest()[:8]
    code = (
        f"{source_of('harness.py')}\n\n"
        "if '_kb_frames' not in globals():\n    _kb_frames = {}\n"
        f"_kb_inputs = _kb_load({key!r}, {literal(paths)}, _kb_frames)\n"
    )
    result = await runner.run(code, timeout=timeout, result_var="_kb_inputs")
    seconds = result.execution_time or 0.0
    report = result.return_value if isinstance(result.return_value, dict) else {}
    if not result.success or not report:
        return Inputs(key, [], error_text(result), seconds)
    if error := report.get("error"):
        return Inputs(key, [], str(error), seconds)
    tables = [Table(**each) for each in report["tables"]]
    return Inputs(key, tables, None, seconds)


async def call(
    runner: Runner, code: str, expression: str, timeout: float, *, then: str = ""
) -> Ran:
    """Run the user's code, then set `result` to an expression, in one cell.

    Args:
        then: one more statement.
    """
    tail = f"result = {expression}\n_kb_result = _kb_report(result)\n{then}\n"
    result = await runner.run(
        f"{code.rstrip()}\n\n{tail}", timeout=timeout, result_var="_kb_result"
    )
    report = result.return_value if isinstance(result.return_value, dict) else {}
    printed = [
        each for each in result.outputs if each["output_type"] not in ("error", "execute_result")
    ]
    output = shorten(join_blocks(output_texts(printed)), MAX_TEXT_CHARS)
    error = None if result.success else error_text(result)
    return Ran(output, report if error is None else {}, error, result.execution_time or 0.0, result)


def literal(value: str | list[str]) -> str:
    """A text, or a list of texts, as Python code."""
    return ascii(value)


def with_written(ran: Ran, path: str) -> Ran:
    """The same, with an error if the file was not written."""
    if ran.error is None and not (ran.report.get("value") or {}).get("written"):
        error = f"operation() returned, but it has not written {path}: write the file there"
        return replace(ran, error=error)
    return ran


def error_text(result: ExecutionResult) -> str:
    """Why a cell failed: its traceback, which ends with the error's name and message."""
    tracebacks = [each for each in result.outputs if each["output_type"] == "error"]
    text = join_blocks(output_texts(tracebacks)) or result.error or "the cell gave no result"
    return shorten(text, MAX_TEXT_CHARS // 2)


def binds(code: str, name: str) -> bool:
    """Whether code binds a name. Code that cannot be parsed may: running it tells what is wrong with it."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of the user's code
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return True
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=bound) | ast.AsyncFunctionDef(name=bound) if bound == name:
                return True
            case ast.Name(id=bound, ctx=ast.Store()) if bound == name:
                return True
            case ast.alias(name=imported, asname=bound) if name in (bound, imported):
                return True
    return False
