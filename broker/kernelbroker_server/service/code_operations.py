"""Operations on the project in a session's sandbox.

Those that read or change files run beside the cells, over the sandbox's gateway. Those that run code
of the project
(tests, builds, commands) are executions: ordered, stored, limited and interrupted as cells are.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    PolicyRefused,
    ProtocolError,
    RequestError,
)
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.messages import ExecutionRequest, ProjectOptions
from kernelbroker.protocol.operations import (
    CHANGING,
    FORGE,
    READING,
    RUNNING,
    CodeOperationResponse,
)
from kernelbroker.protocol.session_events import CodeOperation
from kernelbroker_kernel.contract import (
    MAX_OPERATION_BYTES,
    OPERATION_CODE,
    OPERATION_VARIABLE,
    OPERATIONS_PATH,
)

from ..kernels.requests import InternalCell
from ..kernels.transfer import TransferFailed
from ..sessions.ids import new_id
from ..sessions.projects import PROJECT_PATH, project_of
from ..sessions.session import Session
from ..sessions.session_log import operation_result
from ..sessions.store import ExecutionLog
from ..telemetry.events import CodeOperationEnded
from .executions import Executions
from .forge_operations import push
from .forges import Forges, check_clone
from .session_events import emitted
from .session_streams import streamed

ARCHIVE = ".project.tar"
"""Where an uploaded project waits until it is unpacked."""
CODING_AGENT = "run_coding_agent"
_SHOWN_CHARS = 4096
_Seconds: Any = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_ERROR_CHARS = 8_000


async def operate(
    session: Session, name: str, parameters: dict[str, Any], forges: Forges | None = None
) -> CodeOperationResponse:
    """Run an operation that runs no code of the project. A refusal by the sandbox is an answer.

    Args:
        forges: where `git_push` and `git_create_pr` may go to.

    Raises:
        NotFound: there is no such operation.
        BadRequest, Conflict, Forbidden: the forge, or our rules for it, refuse a push or pull request.
        SessionGone, TooManyRequests, Unavailable: as `Session.borrow`.
    """
    if name in FORGE:
        with _reported(session, name, parameters) as report:
            response = await push(session, name, parameters, forges or Forges(), _exchange)
            report(response)
            return response
    if name not in READING | CHANGING:
        raise _unknown(name)
    return await _asked(session, name, parameters)


async def clone(session: Session, project: ProjectOptions) -> None:
    """Clone the project of a new session.

    Raises:
        BadRequest: the URL or the branch is invalid, or there is no such repository.
        SessionGone, TooManyRequests, Unavailable: as `Session.borrow`.
    """
    assert project.git is not None
    check_clone(project.git, project.ref)
    given = {"url": project.git, "ref": project.ref, "depth": project.depth}
    response = await _asked(session, "clone", {k: v for k, v in given.items() if v is not None})
    if not response.success and response.code != "conflict":  # the workspace has it already
        raise BadRequest(f"the project cannot be cloned: {response.error}")


def expect_upload(session: Session) -> None:
    """Check that a project may be uploaded. Raises Conflict."""
    if (project := project_of(session.options)) is not None and project.path is not None:
        raise Conflict("the session's project is a directory of the host: change its files instead")


async def unpack(session: Session, *, replace: bool) -> CodeOperationResponse:
    """Make the project from the uploaded ARCHIVE. Raises as `operate`."""
    return await _asked(session, "unpack", {"archive": ARCHIVE, "replace": replace})


async def submit(
    executions: Executions, session: Session, name: str, parameters: dict[str, Any]
) -> ExecutionLog:
    """Queue an operation that runs code of the project. Its `timeout` and `confirm` are those of an
    execution.

    Policy and audit log see a command as the equivalent shell cell.

    Raises:
        NotFound: there is no such operation.
        BadRequest: a parameter is invalid.
        Other errors: as `Executions.submit`.
    """
    if name not in RUNNING:
        raise _unknown(name)
    given = dict(parameters)
    timeout, confirm = given.pop("timeout", None), given.pop("confirm", None)
    env = {"SANDBOX_ID": session.sandbox_id or session.id, "PROJECT_PATH": PROJECT_PATH}
    try:
        request = ExecutionRequest(
            code=_code(name, given),
            language="shell",
            timeout=session.limits.max_timeout
            if timeout is None
            else msgspec.convert(timeout, _Seconds),
            confirm=None if confirm is None else msgspec.convert(confirm, str),
            env=env,
            result_var=OPERATION_VARIABLE,
        )
    except msgspec.ValidationError as exc:
        raise BadRequest("timeout is a number of seconds, more than 0, and confirm a text") from exc
    if name == CODING_AGENT:
        given["seconds"] = request.timeout
    cell = InternalCell(
        OPERATION_CODE, {"operation": {"name": name, "parameters": given}}, silent=False
    )
    outcome = "queued"
    try:
        if name == CODING_AGENT and executions.may_be_refused(session.options.template):
            raise PolicyRefused(
                "what a coding agent runs cannot be assessed, and code decides by the policy of this "
                "template: use the agent `native`, whose operations are assessed one by one"
            )
        assessment = await executions.assess_for(session, request)
        log = executions.submit(
            session,
            request,
            assessment=assessment,
            internal_cell=cell,
            may_shorten=timeout is None,
        )
        _begin(session, name, given, log.id, log.id)
        if log.result is not None:  # it was rejected, or has run before
            session.events.mirror(log.id, log.result)
        return log
    except RequestError as exc:
        outcome = exc.code
        raise
    finally:
        _report(session, name, given, outcome, 0.0)


def response_of(result: Result) -> CodeOperationResponse:
    """The answer of an operation that was an execution."""
    if result.success:
        try:
            response = msgspec.convert(result.return_value, CodeOperationResponse)
        except (msgspec.ValidationError, UnicodeError):
            reason = result.truncated.report if result.truncated else None
            message = f"the sandbox sent no valid answer{': ' + reason if reason else ''}"
            response = CodeOperationResponse(success=False, error=message, code="invalid_answer")
    else:
        detail = result.error_detail
        code = "failed" if detail is None or detail.cause == "exception" else detail.cause
        response = CodeOperationResponse(success=False, error=result.error, code=code)
        if isinstance(result.return_value, dict):
            so_far = result.return_value.get("result")
            if isinstance(so_far, dict):
                response.result = so_far
                if running := so_far.get("running"):
                    response.error = f"{result.error}; this test was running: {running}"
        if result.execution_time is not None:
            response.execution_time_ms = round(result.execution_time * 1000)
    response.execution_id = result.execution_id
    return response


def operation_of(request: ExecutionRequest) -> str | None:
    """The name of an execution's operation; None for a cell. A `build` by a command is a `run`."""
    if request.result_var != OPERATION_VARIABLE or request.env.get("PROJECT_PATH") != PROJECT_PATH:
        return None
    name = request.code.partition(" ")[0]
    return name if name in RUNNING else "run"


async def _asked(session: Session, name: str, parameters: dict[str, Any]) -> CodeOperationResponse:
    with _reported(session, name, parameters) as report:
        response = await _exchange(session, name, parameters)
        report(response)
        return response


async def _exchange(
    session: Session, name: str, parameters: dict[str, Any]
) -> CodeOperationResponse:
    """Have the sandbox run an operation."""
    target = f"{OPERATIONS_PATH}/{name}"
    async with streamed(session, "POST", target, encode(parameters)) as answered:
        body = await answered.body(MAX_OPERATION_BYTES)
    try:
        response = decode_as(body, CodeOperationResponse)
    except ProtocolError as exc:
        raise TransferFailed("the sandbox sent an invalid answer") from exc
    response.error = response.error and response.error[:_ERROR_CHARS]
    return response


@contextlib.contextmanager
def _reported(
    session: Session, name: str, parameters: dict[str, Any]
) -> Iterator[Callable[[CodeOperationResponse], None]]:
    """Report an operation, and how it ended. The context's value takes the answer."""
    started_at, operation_id = time.monotonic(), new_id()
    response = CodeOperationResponse(False, error="it was aborted", code="aborted")
    _begin(session, name, parameters, operation_id)

    def report(answer: CodeOperationResponse) -> None:
        nonlocal response
        response = answer

    try:
        yield report
    except RequestError as exc:
        response = CodeOperationResponse(False, error=exc.message, code=exc.code)
        raise
    finally:
        seconds = time.monotonic() - started_at
        outcome = "success" if response.success else str(response.code)[:40]
        _end(session, name, operation_id, response, seconds)
        _report(session, name, parameters, outcome, seconds)


def _begin(
    session: Session,
    name: str,
    parameters: dict[str, Any],
    operation_id: str,
    execution_id: str = "",
) -> None:
    """Tell the session's readers that an operation begins."""
    path, command = parameters.get("path", parameters.get("target")), parameters.get("command")
    event = CodeOperation(
        operation=name,
        operation_id=operation_id,
        path=path[:_SHOWN_CHARS] if isinstance(path, str) else "",
        command=command[:_SHOWN_CHARS] if isinstance(command, str) else "",
        execution_id=execution_id,
    )
    session.events.append(emitted(session, event))


def _end(
    session: Session,
    name: str,
    operation_id: str,
    response: CodeOperationResponse,
    seconds: float,
) -> None:
    """Tell the session's readers how an operation has ended. What was read is not stored."""
    event = operation_result(
        name,
        operation_id,
        success=response.success,
        error=response.error,
        code=response.code,
        result=None if name in READING else response.result,
        milliseconds=response.execution_time_ms or round(seconds * 1000),
    )
    session.events.append(emitted(session, event))


def _report(
    session: Session, name: str, parameters: dict[str, Any], outcome: str, seconds: float
) -> None:
    path = parameters.get("path", parameters.get("target", ""))
    shown = path[:_SHOWN_CHARS] if isinstance(path, str) else ""
    session.emit(CodeOperationEnded, name, shown, outcome, seconds)


def _code(name: str, parameters: dict[str, Any]) -> str:
    """The code for policy, audit log and history."""
    command = parameters.get("command")
    if isinstance(command, str):
        return command
    if name == "run":
        raise BadRequest("the parameter 'command' is missing, or no text")
    given = [f"{key}={value}" for key, value in parameters.items() if value is not None]
    return shlex.join([name, *given])


def _unknown(name: str) -> NotFound:
    known = ", ".join(sorted(READING | CHANGING | RUNNING | FORGE))
    return NotFound(f"there is no operation {name[:100]}; there are: {known}")
