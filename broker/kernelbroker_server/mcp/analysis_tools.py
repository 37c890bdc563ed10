"""The tools of the set `analysis`: those of `kernelbroker.analysis`, on the broker's own sessions.

The code of an analysis runs in the session's order, is assessed like any other code, and is interrupted if
the call is cancelled. The cell that reads the inputs has no code of the caller's, and is not assessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from kernelbroker.analysis import Answer, analyze_data, table_operation
from kernelbroker.analysis.usual import kind_of
from kernelbroker.results import ExecutionResult
from mcp_types import CallToolResult
from pydantic import BaseModel, Field

from . import asking
from .analysis_runner import AnalysisRunner, Interrupted, Replay
from .answers import answer, pictures
from .apps import SHOWN_BY_PAGE
from .call import Call, Options
from .tasks import Begun
from .tool import InSession, Output, ToolResult, ToolSpec, hints

_SHOWN_ROWS = 20
_CELL_CHARS = 80


class Analysis(InSession):
    confirm: Annotated[str, Field(max_length=64)] | None = None
    """The confirmation of an earlier error; only after the person has agreed."""


class AnalyzeData(Analysis):
    file_path: Annotated[str, Field(max_length=4096)]
    """uploads/..., datasets/..., or an absolute path in the sandbox; book.xlsx#Sheet2 for one sheet."""
    analysis_type: Annotated[str, Field(max_length=200)]
    """descriptive, missing, correlation, group, trend, outliers or distribution, which need no code; or any
    words, with code."""
    question: Annotated[str, Field(max_length=10_000)] | None = None
    """What the person wants to know."""
    code: str | None = None
    """Python code that defines analyze(df), which returns a DataFrame, a value, or a dict with markdown,
    data, shape and summary."""


class TableOperation(Analysis):
    instruction: Annotated[str, Field(max_length=10_000)]
    """What is done, in words."""
    input_paths: Annotated[list[str], Field(min_length=1, max_length=100)]
    """As file_path of analyze_data."""
    output_path: Annotated[str, Field(max_length=4096)]
    """The file to write; a relative path is below outputs/."""
    code: str | None = None
    """Python code that defines operation(dataframes, input_paths, output_path) and writes output_path."""


class Frame(BaseModel):
    """The first rows of a result. `shape` is in words."""

    var_name: str
    shape: str
    columns: list[str]
    preview: list[dict[str, Any]]


class AnalysisOutput(Output):
    success: bool
    execution_time: str
    output: str
    dataframe: Frame | None = None
    data: Any = None
    """The rows of the result, at most 500, or its value."""
    inputs: list[dict[str, Any]] | None = None
    """How each table was read: encoding, separator, line of the header, sheet."""
    error: str | None = None


class OperationOutput(Output):
    success: bool
    execution_time: str
    output: str
    output_path: str | None = None
    inputs: list[dict[str, Any]] | None = None
    error: str | None = None


async def _runner(call: Call, args: Analysis) -> AnalysisRunner:
    state = asking.state_of(call)
    session = await call.session(args.session_id or (state.session if state else None))
    return AnalysisRunner(call, session, args.confirm)


async def analyze(call: Call, args: AnalyzeData) -> ToolResult:
    """Analyse a data file (CSV, TSV, Excel, Parquet, JSON) in the session's workspace.

    The usual analyses need no code; each ends with what it means. For another question, write code that
    defines analyze(df) and send it as code.
    """
    runner = await _runner(call, args)
    model = call.options.model or runner.clients_model()
    is_usual = kind_of(args.analysis_type) is not None and not (model and args.question)
    runner.can_be_task = args.code is not None or is_usual
    try:
        return await _analyze(runner, args, call.options, model)
    except Interrupted as interrupted:
        return interrupted.answer


async def _analyze(
    runner: AnalysisRunner | Replay, args: AnalyzeData, options: Options, model: Any = None
) -> CallToolResult:
    found = await analyze_data(
        runner,
        args.file_path,
        args.analysis_type,
        args.question,
        args.code,
        llm=model,
        language=options.language,
    )
    return _answered(found, AnalysisOutput)


async def operate(call: Call, args: TableOperation) -> ToolResult:
    """Make a new file from data files in the session's workspace, by `code` that you write."""
    runner = await _runner(call, args)
    model = call.options.model or runner.clients_model()
    runner.can_be_task = args.code is not None
    try:
        return await _operate(runner, args, call.options, model)
    except Interrupted as interrupted:
        return interrupted.answer


async def _operate(
    runner: AnalysisRunner | Replay, args: TableOperation, options: Options, model: Any = None
) -> CallToolResult:
    found = await table_operation(
        runner,
        args.instruction,
        args.input_paths,
        args.output_path,
        args.code,
        llm=model,
        language=options.language,
    )
    return _answered(found, OperationOutput)


async def replay(
    begun: Begun, results: Sequence[ExecutionResult], session_id: str, options: Options
) -> CallToolResult:
    """Return the result of a call whose cells have run, the last one as a task."""
    runner = Replay(session_id, results)
    if begun.tool == "analyze_data":
        return await _analyze(runner, AnalyzeData.model_validate(begun.arguments), options)
    return await _operate(runner, TableOperation.model_validate(begun.arguments), options)


def _answered(found: Answer, model: type[AnalysisOutput] | type[OperationOutput]) -> CallToolResult:
    output = model.model_validate(found)
    shown, notes = pictures(found.images)
    words = [_text(found), *notes]
    return answer("\n".join(words), output, shown, is_error=not output.success)


def _text(found: Answer) -> str:
    """What the model reads: the output, the first rows of a table, and the error."""
    blocks = [found["output"], found.get("error", "")]
    if path := found.get("output_path"):
        blocks.append(f"[written: {path}]")
    frame = found.get("dataframe")
    if frame is not None and not (frame["preview"] and "|" in found["output"]):
        blocks.append(f"{frame['var_name']}: {frame['shape']}\n{_markdown(frame)}")
    return "\n".join(filter(None, blocks)) or "(no output)"


def _markdown(frame: dict[str, Any]) -> str:
    def line(cells: list[Any]) -> str:
        texts = ["" if each is None else str(each)[:_CELL_CHARS] for each in cells]
        escaped = [each.replace("|", "\\|").replace("\n", " ") for each in texts]
        return f"| {' | '.join(escaped)} |"

    rows = [each for each in frame["preview"][:_SHOWN_ROWS] if isinstance(each, dict)]
    if not rows:
        return ""
    columns = list(rows[0])[:_SHOWN_ROWS]
    lines = [line([row.get(name) for name in columns]) for row in rows]
    return "\n".join([line(columns), line(["---"] * len(columns)), *lines])


ANALYSIS_TOOLS = (
    ToolSpec(
        "analyze_data",
        "Analyse a data file",
        AnalyzeData,
        AnalysisOutput,
        analyze,
        hints(),
        SHOWN_BY_PAGE,
    ),
    ToolSpec(
        "table_operation",
        "Make a table file",
        TableOperation,
        OperationOutput,
        operate,
        hints(destructive=True),
    ),
)
