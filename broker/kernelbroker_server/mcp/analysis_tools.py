"""The tools of the set `analysis`: those of `kernelbroker.analysis`, on the broker's own sessions.

The code of an analysis runs in the session's order, is assessed like any other code, and is interrupted if
the call is cancelled. The cell that reads the inputs has no code of the caller's, and is not assessed.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from kernelbroker.analysis import Answer, analyze_data, table_operation
from kernelbroker.analysis.cells import is_harness
from kernelbroker.protocol.errors import Unavailable
from kernelbroker.protocol.findings import Assessment
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker.results import ExecutionResult
from mcp.shared.exceptions import MCPError
from mcp_types import InputRequiredResult, SamplingMessage, TextContent
from pydantic import BaseModel, Field

from ..sessions.session import Session
from ..sessions.store import ExecutionLog
from . import asking, cells
from .answers import answer, pictures
from .apps import SHOWN_BY_PAGE
from .call import Call
from .tool import InSession, Output, ToolResult, ToolSpec, hints

_SAMPLED_TOKENS = 8192
_SHOWN_ROWS = 20
_CELL_CHARS = 80
_HARMLESS = Assessment(language="python", level="safe")


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
    code: str
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
    error: str | None = None


class OperationOutput(Output):
    success: bool
    execution_time: str
    output: str
    output_path: str | None = None
    error: str | None = None


class _NeedsPerson(Exception):
    """The person must be asked before a cell runs. `result` is the answer to the call."""

    def __init__(self, result: InputRequiredResult) -> None:
        super().__init__()
        self.result = result


class _Runner:
    """Runs the cells of an analysis in a session of the broker."""

    def __init__(self, call: Call, session: Session, confirm: str | None) -> None:
        self.session_id = session.id
        self._call = call
        self._session = session
        self._confirm = confirm
        self._has_read = False

    async def run(
        self, code: str, *, timeout: float | None = None, result_var: str | None = None
    ) -> ExecutionResult:
        executions, session = self._call.tenant.executions, self._session
        request = ExecutionRequest(code=code, timeout=timeout, result_var=result_var)
        # The caller's code can begin like the harness, but is never the first cell.
        reads, self._has_read = not self._has_read and is_harness(code), True

        async def submit_with(confirm: str | None) -> ExecutionLog:
            request.confirm = confirm
            if reads:
                return executions.submit(session, request, assessment=_HARMLESS)
            assessment = await executions.assess_for(session, request)
            return executions.submit(session, request, assessment=assessment)

        log = await cells.submit(self._call, session, code, self._confirm, submit_with)
        if isinstance(log, InputRequiredResult):
            raise _NeedsPerson(log)
        result = await cells.follow(self._call, session, log)
        assert isinstance(result, ExecutionResult), "it may not ask for input, and is waited for"
        return result


async def _runner(call: Call, args: Analysis) -> _Runner:
    state = asking.state_of(call)
    session = await call.session(args.session_id or (state.session if state else None))
    return _Runner(call, session, args.confirm)


async def analyze(call: Call, args: AnalyzeData) -> ToolResult:
    """Analyse a data file (CSV, TSV, Excel, Parquet, JSON) in the session's workspace.

    The usual analyses need no code; each ends with what it means. For another question, write code that
    defines analyze(df) and send it as code.
    """
    try:
        found = await analyze_data(
            await _runner(call, args),
            args.file_path,
            args.analysis_type,
            args.question,
            args.code,
            llm=call.options.model or _clients_model(call),
            language=call.options.language,
        )
    except _NeedsPerson as needed:
        return needed.result
    return _answered(found, AnalysisOutput)


async def operate(call: Call, args: TableOperation) -> ToolResult:
    """Make a new file from data files in the session's workspace, by code that you write."""
    try:
        found = await table_operation(
            await _runner(call, args),
            args.instruction,
            args.input_paths,
            args.output_path,
            args.code,
            llm=call.options.model or _clients_model(call),
            language=call.options.language,
        )
    except _NeedsPerson as needed:
        return needed.result
    return _answered(found, OperationOutput)


def _answered(found: Answer, model: type[AnalysisOutput] | type[OperationOutput]) -> ToolResult:
    output = model.model_validate(found)
    shown, notes = pictures(found.images)
    words = [_text(found), *notes]
    return answer("\n".join(words), output, shown, is_error=not output.success)


def _clients_model(call: Call) -> Callable[[str], Awaitable[str]] | None:
    """The client's own model, if the client lends it and can be asked while the call runs."""
    capabilities = call.ctx.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        return None
    if call.is_modern or not call.ctx.session.can_send_request:
        return None

    async def ask(prompt: str) -> str:
        message = SamplingMessage(role="user", content=TextContent(text=prompt))
        try:
            with warnings.catch_warnings(
                action="ignore"
            ):  # deprecated, and all that older ones have
                sampled: Awaitable[Any] = call.ctx.session.create_message(
                    [message], max_tokens=_SAMPLED_TOKENS, related_request_id=call.ctx.request_id
                )
            result = await sampled
        except MCPError as exc:
            raise Unavailable(f"the client's model wrote no code: {exc}; send `code`") from exc
        return result.content.text if isinstance(result.content, TextContent) else ""

    return ask


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
