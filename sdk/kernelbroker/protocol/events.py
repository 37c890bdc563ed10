"""The events of an execution's output, in the order of their `seq`.

Every execution yields `started`, any number of outputs, and exactly one `result`, which is the last.
`seq` starts at 1 in each execution and has no gaps, so a reader that knows the last `seq` that it has
received can request the rest. `codec.py` writes them as JSON.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from .findings import Finding, SuggestedSandbox

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
    """The fields of all events. The event store sets them when it stores the event."""

    execution_id: str = ""
    seq: int = 0


class Started(EventBase, tag="started"):
    """The kernel took the cell, `queued_s` seconds after the broker accepted it."""

    execution_count: int | None = None
    queued_s: float = 0.0


class Stdout(EventBase, tag="stdout"):
    content: str


class Stderr(EventBase, tag="stderr", omit_defaults=True):
    """Standard error; also the tracebacks of errors, without ANSI codes.

    Attributes:
        is_traceback: this is a traceback. That of the error that ends the cell is the last; the result's
            `error_detail` has this error in fields.
        error_name, error_value: of the error, in the first event of its traceback.
    """

    content: str
    is_traceback: bool = False
    error_name: str = ""
    error_value: str = ""


CHART_MIME = "application/vnd.kernelbroker.chart+json"
"""The form of a picture's `chart` in a notebook's outputs."""


class Image(EventBase, tag="image"):
    """A picture. `content` is base64, except for `image/svg+xml`, which is text.

    Attributes:
        width, height: in pixels, if known.
        data: the rest of the MIME bundle that held the picture, such as `text/html` and `text/plain`.
        metadata: of the MIME bundle.
        is_result: the picture is the value of the cell's last expression.
        chart: what a figure of matplotlib shows: its `type` (`line`, `scatter`, `bar`, `pie`,
            `box_and_whisker`, or `superchart` with several axes), its `title`, axes and `elements`.
    """

    mime: str
    content: str
    width: int | None = None
    height: int | None = None
    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    is_result: bool = False
    chart: dict[str, Any] | None = None


class Display(EventBase, tag="display"):
    """Any other rich output, as a MIME bundle.

    Attributes:
        update: the bundle replaces the one that was shown under this `display_id`.
        is_result: the bundle is the value of the cell's last expression.
    """

    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    display_id: str | None = None
    update: bool = False
    is_result: bool = False


class Clear(EventBase, tag="clear"):
    """Remove the output so far; with `wait`, when the next output comes."""

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
    """A table's row labels: one name and one dtype for each level; `values` belong to the previewed rows.

    With one level a value is a scalar, with several it is a list of scalars.
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
        labels: the original labels, in order, if they differ from the keys (duplicates, numbers, the
            tuples of a MultiIndex as lists); else null.
        index: the row labels of the preview; null for kinds that have none.
        preview: the first rows, one object for each row.
        markdown: the preview as a markdown table.
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
    """A variable of the session, with `shape` (arrays, tables) or `length` if it has one."""

    name: str
    type: str
    shape: list[int] | None = None
    length: int | None = None


class FileChange(msgspec.Struct, kw_only=True):
    """A workspace file that the execution created or changed.

    Attributes:
        path: under `/data`.
        size: bytes.
        created: it was not there before.
    """

    path: str
    size: int
    created: bool = False


class Truncated(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The amount of output that was cut, in the unit of each kind; a kind that lost nothing is absent."""

    output_bytes: int = 0
    rich_outputs: int = 0
    variables: int = 0
    files: bool = False
    report: str | None = None


class MissingVariable(msgspec.Struct, kw_only=True, frozen=True):
    """A variable that is not saved or not loaded.

    Attributes:
        name: in angle brackets for what is no variable (`<thread>`, `<process>`, `<javascript>`); `file`
            and a path for a file; `$` and a name for a variable of the environment.
    """

    name: str
    reason: str


class Moved(msgspec.Struct, kw_only=True):
    """The session moved to another sandbox before the execution, with its files.

    Attributes:
        from_: the template that it left; `from` in JSON.
        to: the template where it runs now.
        left: the variables that could not be taken along, and the processes that ended (`<process>`).
    """

    from_: str = msgspec.field(name="from")
    to: str
    left: list[MissingVariable] = []


class Result(EventBase, tag="result"):
    """The end of an execution.

    `execution_time` is in seconds, measured in the kernel, and null if the kernel died. `error` is one
    line, `Name: message`. `exit_code` is that of the program of a cell in another language, if it
    ended with the cell, or of `sys.exit`; with 0 the cell is a success. `removed` has the names that the
    failed cell had created, and that are gone (see `on_error`). `kernel_restarted` is true if the
    variables were lost: in the result of the cell that cost them, or else in the first result of the fresh
    kernel, also after a restart that a client asked for. `findings` are the warnings of the broker's
    policy.

    In a session whose template is `auto`, `sandbox` is the kind of sandbox where the execution ran, or
    `REJECT`; `template` and `isolation` are those of the sandbox; `moved` is set if the session moved
    before it.
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
    sandbox: SuggestedSandbox | None = None
    template: str | None = None
    isolation: str | None = None
    moved: Moved | None = None
    removed: list[str] = []


Event: TypeAlias = Started | Stdout | Stderr | Image | Display | Clear | Input | Result
