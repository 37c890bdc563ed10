"""The items of an execution's output, in the order of their `seq`.

Every execution yields `started`, any number of outputs, and exactly one `result`, which is the last.
`seq` starts at 1 in each execution and has no gaps, so a reader that knows the last `seq` it saw can
ask for the rest. The structs say what is on the wire; how it is written stands in `codec.py`.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from .findings import Finding

Cause: TypeAlias = Literal[
    "exception",
    "timeout",
    "interrupted",
    "out_of_memory",
    "kernel_died",
    "sandbox_lost",
    "quota_exceeded",
    "rejected",
]
"""Why an execution failed. Only `exception`, `timeout`, `interrupted` and `quota_exceeded`
(the workspace holds too much) can leave the state intact."""


class EventBase(msgspec.Struct, tag_field="type", kw_only=True):
    """What all events carry. The journal fills in both fields when it takes the event."""

    execution_id: str = ""
    seq: int = 0


class Started(EventBase, tag="started"):
    """The kernel took the cell, `queued_s` seconds after the broker accepted it."""

    execution_count: int | None = None
    queued_s: float = 0.0


class Stdout(EventBase, tag="stdout"):
    content: str


class Stderr(EventBase, tag="stderr"):
    """Standard error; also the traceback of an error, without ANSI codes."""

    content: str


class Image(EventBase, tag="image"):
    """A picture. `content` is base64, except for `image/svg+xml`, which is text.

    `width` and `height` are in pixels where they are known.
    """

    mime: str
    content: str
    width: int | None = None
    height: int | None = None


class Display(EventBase, tag="display"):
    """Any other rich output, as a MIME bundle; with `update`, a new content for that `display_id`."""

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    display_id: str | None = None
    update: bool = False


class Clear(EventBase, tag="clear"):
    """Forget the output so far; with `wait`, not before the next output comes."""

    wait: bool = False


class Input(EventBase, tag="input"):
    """`input()` waits in the cell; it is answered with the `stdin` operation."""

    prompt: str = ""
    password: bool = False


class ErrorDetail(msgspec.Struct, kw_only=True):
    name: str
    value: str
    cause: Cause
    traceback: list[str] = []


class IndexInfo(msgspec.Struct, kw_only=True):
    """A table's row labels: one name and one dtype a level; `values` belong to the previewed rows.

    With one level a value is a scalar, with several it is a list of them.
    """

    names: list[Any]
    dtypes: list[str]
    values: list[Any]


class DataFrame(msgspec.Struct, kw_only=True):
    """A table that `result_var` named. Every value is plain JSON.

    Attributes:
        kind: `pandas`, `polars` or `pyarrow`.
        shape: rows and columns of the whole table.
        columns: unique text keys, in order; `dtypes` and the records of `preview` use them.
        labels: the true labels, in order, where they are not the keys themselves (duplicates,
            numbers, the tuples of a MultiIndex as lists); null where they are.
        index: the row labels of the preview; null for kinds that have none.
        preview: the first rows, one object a row.
        markdown: the preview as a table to read.
        memory_usage: bytes; estimated from a sample for columns of Python objects.
    """

    var_name: str
    kind: str
    shape: tuple[int, int]
    columns: list[str]
    labels: list[Any] | None = None
    dtypes: dict[str, str]
    index: IndexInfo | None = None
    preview: list[dict[str, Any]]
    markdown: str
    memory_usage: int


class Variable(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A name that the session holds, with `shape` (arrays, tables) or `length` where it has one."""

    name: str
    type: str
    shape: list[int] | None = None
    length: int | None = None


class FileChange(msgspec.Struct, kw_only=True):
    """A workspace file that the execution created or changed: path under `/data`, size in bytes."""

    path: str
    size: int


class Truncated(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What was cut, in each kind's own measure; a kind that lost nothing is absent."""

    output_bytes: int = 0
    rich_outputs: int = 0
    variables: int = 0
    files: bool = False
    report: str | None = None


class Result(EventBase, tag="result"):
    """The end of an execution.

    `execution_time` is in seconds, measured in the kernel, null where the kernel died. `error` is one
    line, `Name: message`. `exit_code` is that of the program that ran a cell in another language, where
    it ended with the cell. `kernel_restarted` is true where the session's state was lost. `findings`
    says what the broker's policy has to warn of.
    """

    success: bool
    execution_count: int | None = None
    execution_time: float | None = None
    error: str | None = None
    error_detail: ErrorDetail | None = None
    dataframe: DataFrame | None = None
    return_value: Any = None
    variables: list[Variable] = []
    files: list[FileChange] = []
    exit_code: int | None = None
    truncated: Truncated | None = None
    kernel_restarted: bool = False
    findings: list[Finding] = []


Event: TypeAlias = Started | Stdout | Stderr | Image | Display | Clear | Input | Result
