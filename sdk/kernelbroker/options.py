"""What a caller may say about an execution; the words mean the same in every client.

They are given as keyword arguments, `session.run(code, timeout=30, result_var="df")`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeAlias, TypedDict

from .protocol.findings import Language
from .results import Display, Image

Callback: TypeAlias = Callable[[Any], Any]


class ExecutionOptions(TypedDict, total=False):
    """How a cell is run.

    Attributes:
        language: `python`, `javascript` or `shell`.
        timeout: seconds until the cell is interrupted; the broker has a default and a bound.
        cwd, env: for this execution only.
        secrets: as `env`; the broker masks their values in all output.
        result_var: a variable to report, a table as `dataframe`, anything else as `return_value`.
        preview_rows: how many rows of the table to send.
        on_error: `rollback` removes the names that a failed cell created, `keep` leaves them.
        on_disconnect: whether the cell runs on (`continue`) or is interrupted (`interrupt`) when its
            caller leaves early, is cancelled, or loses the connection.
        confirm: the `confirmation` of the `ConfirmationRequired` that this very cell got in this session.
        allow_stdin: the caller answers `input` events (`Session.stdin`); else `input()` is an error.
    """

    language: Language
    timeout: float | None
    cwd: str | None
    env: dict[str, str]
    secrets: dict[str, str]
    result_var: str | None
    preview_rows: int
    on_error: Literal["rollback", "keep"]
    on_disconnect: Literal["continue", "interrupt"]
    confirm: str | None
    allow_stdin: bool


class RunOptions(ExecutionOptions, total=False):
    """The same, and callbacks for output as it comes, sync or async; an exception in one ends `run`.

    Attributes:
        on_stdout, on_stderr: get text.
        on_image: gets an `Image`.
        on_display: gets a `Display`.
        on_input: gets the prompt of an `input()` in the cell, and returns the answer.
            With it `allow_stdin` is true.
    """

    on_stdout: Callable[[str], Any] | None
    on_stderr: Callable[[str], Any] | None
    on_image: Callable[[Image], Any] | None
    on_display: Callable[[Display], Any] | None
    on_input: Callable[[str], Any] | None
