"""Actions of the browser in a session's sandbox. Each is an execution: ordered, stored, limited, judged.

What is filled into a field may be a password, so no value of `fill` is in the stored code or the audit log.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec
from kernelbroker.protocol.errors import BadRequest, Conflict, NotFound, RequestError
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker.protocol.operations import BROWSING
from kernelbroker_kernel.contract import OPERATION_CODE, OPERATION_VARIABLE

from ..backends.base import Isolation
from ..kernels.requests import InternalCell
from ..sessions.routes import has_browser as browses
from ..sessions.session import Session
from ..sessions.store import ExecutionLog
from ..telemetry.events import CodeOperationEnded
from .executions import Executions

DEFAULT_TIMEOUT_S = 30.0
"""Of an action that names none. The sandbox's own default is the same."""
STARTING_S = 60.0
"""More, for the start of the browser."""
ISOLATIONS = (Isolation.BUBBLEWRAP, Isolation.GVISOR)
"""Where a browser may run: it has no sandbox of its own there. See docs/security.md."""
_SHOWN_CHARS = 2000
_WITHHELD = "value"


async def submit(
    executions: Executions, session: Session, name: str, parameters: dict[str, Any]
) -> ExecutionLog:
    """Queue an action. Its `confirm` is that of an execution.

    Raises:
        NotFound: there is no such action.
        BadRequest: a parameter is invalid.
        Conflict: the session's template has no browser.
        Other errors: as `Executions.submit`.
    """
    if name not in BROWSING:
        raise NotFound(f"there is no action {name[:100]}; there are: {', '.join(sorted(BROWSING))}")
    action, given = name.removeprefix("browser_"), dict(parameters)
    confirm = given.pop("confirm", None)
    if not has_browser(session):
        if session.routes is not None:
            raise Conflict(
                "this broker has no browser: no template has `browser = true`, to be its aio_sandbox"
            )
        raise Conflict(
            f"the template {session.options.template} has no browser: open a session with a template that "
            "has `browser = true`, and jails or gVisor; see `browser` in /health"
        )
    try:
        request = ExecutionRequest(
            code=shown_action(name, given),
            language="shell",
            timeout=min(seconds_of(given) + STARTING_S, session.limits.max_timeout),
            confirm=None if confirm is None else msgspec.convert(confirm, str),
            result_var=OPERATION_VARIABLE,
        )
    except msgspec.ValidationError as exc:
        raise BadRequest("confirm must be a text") from exc
    options = {"operation": {"name": name, "parameters": given}}
    cell = InternalCell(OPERATION_CODE, options, silent=False)
    outcome = "queued"
    try:
        assessment = await executions.assess_action(session, action, given)
        return executions.submit(
            session, request, assessment=assessment, internal_cell=cell, may_shorten=True
        )
    except RequestError as exc:
        outcome = exc.code
        raise
    finally:
        session.emit(CodeOperationEnded, name, target_of(given), outcome, 0.0)


def has_browser(session: Session) -> bool:
    """Whether actions can be carried out in this session; in a routed one, after a move."""
    if session.routes is None:
        return session.spec.browser and session.isolation in ISOLATIONS
    pool = session.routes.find("aio_sandbox")
    return pool is not None and browses(pool)


def seconds_of(given: Mapping[str, Any]) -> float:
    """Return the timeout of an action. Raises BadRequest."""
    timeout = given.get("timeout")
    if timeout is None:
        return DEFAULT_TIMEOUT_S
    if type(timeout) not in (int, float) or not 0 < timeout < float("inf"):
        raise BadRequest("timeout must be a number of seconds, greater than 0")
    return float(timeout)


def shown_action(name: str, given: Mapping[str, Any]) -> str:
    """Return the action as a line of text, for the history and for persons."""
    shown = [
        f"{key}=[withheld]" if key == _WITHHELD else f"{key}={value}"
        for key, value in given.items()
        if value is not None
    ]
    return shlex.join(["browser", name.removeprefix("browser_"), *shown])


def target_of(given: Mapping[str, Any]) -> str:
    """Return what the audit log names: the element, or the address without what may be secret in it."""
    selector, url = given.get("selector"), given.get("url")
    if isinstance(selector, str):
        return selector[:_SHOWN_CHARS]
    if not isinstance(url, str):
        return ""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        return ""
    return f"{parts.scheme}://{host}{port}{parts.path}"[:_SHOWN_CHARS]
