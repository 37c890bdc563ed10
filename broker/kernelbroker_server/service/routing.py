"""Where a cell runs, and the results of cells that must not run."""

from __future__ import annotations

import msgspec
from kernelbroker.protocol.errors import BadRequest, Unavailable
from kernelbroker.protocol.events import ErrorDetail, Result
from kernelbroker.protocol.findings import Assessment
from kernelbroker.protocol.messages import ExecutionRequest, SessionOptions

from ..sessions.ids import new_id
from ..sessions.routes import AUTO, Place, Rejected, Routes
from ..sessions.store import EventStore, ExecutionLog, SessionRecord

_REJECTED_STATUS = -1
_WITHOUT_SANDBOX = "its one execution was rejected"


def place_of(
    options: SessionOptions,
    routes: Routes | None,
    request: ExecutionRequest,
    assessment: Assessment | None,
) -> Place | None:
    """Decide where a cell of a session runs; None if the session is not routed.

    Args:
        options: of the session.
        routes: of the session, if it is routed.

    Raises:
        Rejected: it must not run.
        BadRequest: the request names another template than that of a session that is not routed, or none.
        Unavailable: it was not assessed.
    """
    if routes is None:
        if request.template not in (None, options.template):
            raise BadRequest(
                "an open session keeps its template and its workspace: leave them out, or open a session "
                f'with template = "{AUTO}", whose cells can name one'
            )
        return None
    if assessment is None:  # the execution was known before the assessment and is forgotten now
        raise Unavailable("the code was not assessed; send it again", retry_after=1)
    template = None if request.template == AUTO else request.template
    return routes.decide(request.code, assessment, template)


def rejection(rejected: Rejected) -> Result:
    """Return the result of a cell that must not run."""
    message = f"execution rejected: {rejected}"
    detail = ErrorDetail(name="ExecutionRejected", value=str(rejected), cause="rejected")
    return Result(
        success=False,
        exit_code=_REJECTED_STATUS,
        error=message,
        error_detail=detail,
        sandbox="REJECT",
    )


def store_rejected(
    store: EventStore,
    tenant: str,
    options: SessionOptions,
    request: ExecutionRequest,
    rejected: Rejected,
) -> tuple[str, ExecutionLog]:
    """Store a cell without a session that must not run. Returns the session's id, and the cell."""
    record = SessionRecord(new_id(), tenant, options.session_id or new_id(), options)
    store.record_session(record)
    execution_id = request.execution_id or new_id()
    request = msgspec.structs.replace(request, confirm=None)
    log = store.create_execution(record.key, execution_id, request, (), ())
    log.append(rejection(rejected))
    store.end_session(record.key, _WITHOUT_SANDBOX)
    return record.session_id, log
