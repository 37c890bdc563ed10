"""The tools of the set `code`: run code, install packages, look at tables, and treat sessions."""

from __future__ import annotations

import ast
import warnings
from typing import Annotated

from kernelbroker.dataframe_info import DataFrameInfo
from kernelbroker.protocol.findings import Language
from kernelbroker.protocol.messages import ExecutionRequest, InstallRequest, SessionOptions
from kernelbroker.result_text import shorten
from mcp_types import CallToolResult, InputRequiredResult
from pydantic import Field

from ..service import packages
from ..service import tables as table_service
from ..sessions.session import Session
from ..sessions.store import ExecutionLog
from . import asking, cells, tasks
from .answers import MAX_CHARS, CellOutput, Table, answer, of_execution, table_of
from .apps import FOR_PAGE_ONLY, SHOWN_BY_PAGE
from .call import OPENED_BY, Call
from .tool import Arguments, InSession, Output, SessionId, ToolResult, ToolSpec, hints

_PARSED_CHARS = 20_000
"""Of code that is parsed to find out whether it ends with an expression."""
_PREVIEW_ROWS = 50


class RunCode(InSession):
    code: str
    """The code of one cell. The value of its last expression is shown, as in a notebook."""
    language: Language = "python"
    """python and javascript keep variables between cells; shell keeps only files."""
    timeout: Annotated[float, Field(ge=1, le=300)] = 30
    """Seconds after which the cell is interrupted."""
    result_var: Annotated[str, Field(max_length=256)] | None = None
    """A variable to report, in place of the last expression's value."""
    confirm: Annotated[str, Field(max_length=64)] | None = None
    """The confirmation of an earlier error; only after the person has agreed."""


async def run_code(call: Call, args: RunCode) -> ToolResult:
    """Run code in a session and return what it prints, its pictures, and its last value.

    Variables, imports and files stay in the session for the next call. The Python environment has pandas,
    numpy, matplotlib and more; plots are shown as pictures. A table that is the last expression's value is
    returned with its first rows; get_table reads more of it, if it has a name. The directory is /data.
    """
    state = asking.state_of(call)
    session = await call.session(args.session_id or (state.session if state else None))
    is_last_value = args.result_var is None and _ends_with_expression(args)
    request = ExecutionRequest(
        code=args.code,
        language=args.language,
        timeout=min(args.timeout, session.limits.max_timeout),
        result_var=cells.LAST_VALUE if is_last_value else args.result_var,
        preview_rows=_PREVIEW_ROWS,
    )
    executions = call.tenant.executions

    async def submit_with(confirm: str | None) -> ExecutionLog:
        request.confirm = confirm
        assessment = await executions.assess_for(session, request)
        return executions.submit(
            session,
            request,
            allow_stdin=asking.can_ask(call),
            assessment=assessment,
            may_shorten=True,
        )

    log: ExecutionLog | InputRequiredResult
    if state is not None and state.step == "input":
        log = session.execution(state.execution)
    else:
        log = await cells.submit(call, session, args.code, args.confirm, submit_with)
    if isinstance(log, InputRequiredResult):
        return log
    return await _finish(call, session, log, is_last_value=is_last_value)


async def _finish(
    call: Call, session: Session, log: ExecutionLog, *, is_last_value: bool = False
) -> ToolResult:
    """Wait for a cell. If it takes long, and the client knows tasks, it goes on as a task."""
    for_s = call.options.task_after if tasks.knows_tasks(call.ctx) else None
    result = await cells.follow(call, session, log, for_s=for_s)
    if result is None:
        return tasks.handle(call, session.id, log)
    if isinstance(result, InputRequiredResult):
        return result
    return of_execution(session.id, result, session.sandbox_type, is_last_value=is_last_value)


class InstallPackages(InSession):
    packages: Annotated[
        list[Annotated[str, Field(min_length=1, max_length=200)]], Field(min_length=1)
    ]
    """Names, if needed with versions, as pip takes them: numpy, "polars>=1.20"."""
    confirm: Annotated[str, Field(max_length=64)] | None = None
    """The confirmation of an earlier error; only after the person has agreed."""


async def install_packages(call: Call, args: InstallPackages) -> ToolResult:
    """Install Python packages for one session. Call this instead of running pip."""
    state = asking.state_of(call)
    session = await call.session(args.session_id or (state.session if state else None))

    async def submit_with(confirm: str | None) -> ExecutionLog:
        request = InstallRequest(packages=args.packages, confirm=confirm)
        return await packages.install(call.tenant.executions, session, request)

    shown = "pip install " + " ".join(args.packages)
    log = await cells.submit(call, session, shown, args.confirm, submit_with)
    if isinstance(log, InputRequiredResult):
        return log
    return await _finish(call, session, log)


class GetTable(InSession):
    name: Annotated[str, Field(max_length=256)]
    """The variable that holds a table of pandas, polars or pyarrow."""
    offset: Annotated[int, Field(ge=0)] = 0
    """The first row."""
    limit: Annotated[int, Field(ge=1, le=500)] = 50
    """How many rows."""
    sort_by: str | None = None
    """A column in whose order the rows are counted."""
    descending: bool = False


class TableOutput(Output):
    table: Table


async def get_table(call: Call, args: GetTable) -> ToolResult:
    """Read rows of a table that is a variable of the session, of any size, without changing it."""
    session = await call.session(args.session_id)
    found = await table_service.page(
        call.tenant.executions,
        session,
        args.name,
        offset=args.offset,
        limit=args.limit,
        sort_by=args.sort_by,
        descending=args.descending,
    )
    info = DataFrameInfo.of(found)
    text = shorten(f"{info.title}, from row {args.offset}\n{info.markdown}", MAX_CHARS)
    output = TableOutput(session_id=session.id, table=table_of(info, args.offset))
    return answer(text, output)


class CreateSession(Arguments):
    template: str = "default"
    """The kind of sandbox."""
    name: SessionId | None = None
    """The id of the new session; made by the server if absent. An open session with this id is returned."""


class SessionOutput(Output):
    template: str
    workspace: str
    """The name under which its files are kept after its end."""
    idle_timeout: float
    """Seconds without calls after which it is closed."""


async def create_session(call: Call, args: CreateSession) -> ToolResult:
    """Open a session: a sandbox that keeps variables and files until it is closed or was idle for long.

    Not needed before run_code, which opens a session by itself. Use it for several sessions, or for another
    template.
    """
    options = SessionOptions(session_id=args.name, template=args.template, metadata=OPENED_BY)
    session, is_new = await call.tenant.sessions.open(options)
    call.use(session)
    output = SessionOutput(
        session_id=session.id,
        template=session.options.template,
        workspace=session.workspace,
        idle_timeout=session.idle_timeout,
    )
    return answer("The session is open." if is_new else "The session was open already.", output)


class OneSession(Arguments):
    session_id: SessionId
    """The session, as an earlier result named it."""


class Closed(Output):
    closed: bool = True


async def close_session(call: Call, args: OneSession) -> ToolResult:
    """End a session: its variables are lost, and its sandbox is free for others."""
    call.session_id = args.session_id
    await call.tenant.sessions.close(args.session_id)
    return _done(f"The session {args.session_id} is closed.", Closed(session_id=args.session_id))


class Restarted(Output):
    restarted: bool = True


async def restart_session(call: Call, args: InSession) -> ToolResult:
    """Start a session's kernel afresh: all variables are lost, files are kept."""
    session = await call.session(args.session_id)
    await call.tenant.sessions.restart(session.id)
    return answer(
        "The session has a fresh kernel; its files are kept.", Restarted(session_id=session.id)
    )


class Interrupted(Output):
    interrupted: bool
    """Whether a cell was running."""


async def interrupt(call: Call, args: OneSession) -> ToolResult:
    """Interrupt the running cell of a session, as Ctrl-C does. Its variables are kept."""
    session = await call.session(args.session_id)
    was_busy = session.state == "busy"
    session.interrupt()
    text = "The running cell is interrupted." if was_busy else "No cell was running."
    return answer(text, Interrupted(session_id=session.id, interrupted=was_busy))


def _done(text: str, output: Output) -> CallToolResult:
    """The result of a call after which the session is no more."""
    result = answer(text, output)
    result.content[0].text = text  # type: ignore[union-attr]
    return result


def _ends_with_expression(args: RunCode) -> bool:
    """Whether the cell's last statement is an expression whose value is shown."""
    code = args.code.rstrip()
    if args.language != "python" or len(code) > _PARSED_CHARS or code.endswith(";"):
        return False
    try:
        with warnings.catch_warnings(action="ignore"):  # of the user's code
            body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return bool(body) and isinstance(body[-1], ast.Expr)


TABLE_PAGE = ToolSpec(
    "table_page",
    "Page through a table",
    GetTable,
    TableOutput,
    get_table,
    hints(read_only=True),
    FOR_PAGE_ONLY,
)
"""For the page that shows results, also in sets of tools without `get_table`."""
CODE_TOOLS = (
    ToolSpec(
        "run_code",
        "Run code",
        RunCode,
        CellOutput,
        run_code,
        hints(destructive=True),
        SHOWN_BY_PAGE,
    ),
    ToolSpec(
        "install_packages",
        "Install packages",
        InstallPackages,
        CellOutput,
        install_packages,
        hints(idempotent=True, open_world=True),
    ),
    ToolSpec(
        "get_table",
        "Look at a table",
        GetTable,
        TableOutput,
        get_table,
        hints(read_only=True),
        SHOWN_BY_PAGE,
    ),
    TABLE_PAGE,
    ToolSpec(
        "create_session", "Open a session", CreateSession, SessionOutput, create_session, hints()
    ),
    ToolSpec(
        "close_session",
        "Close a session",
        OneSession,
        Closed,
        close_session,
        hints(destructive=True, idempotent=True),
    ),
    ToolSpec(
        "restart_session",
        "Restart a session",
        InSession,
        Restarted,
        restart_session,
        hints(destructive=True),
    ),
    ToolSpec(
        "interrupt",
        "Interrupt a session",
        OneSession,
        Interrupted,
        interrupt,
        hints(idempotent=True),
    ),
)
