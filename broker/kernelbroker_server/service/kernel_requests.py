"""Which requests of Jupyter's clients may pass a policy that has to see code before it runs.

Cells are assessed. Some other requests run code as well, and nothing assesses that: a debugger evaluates
expressions, also as the conditions of breakpoints. Messages of comms run none: they bring data to functions
that cells have defined.
"""

from __future__ import annotations

import contextlib
from typing import Any

from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.errors import BadRequest, PolicyRefused, ProtocolError

from ..kernels.framing import RequestHeader, split_frame

EXECUTE = "execute_request"
DEBUG = "debug_request"
_CONTENT = 4
_RUN_NO_CODE = frozenset(
    [
        *("kernel_info_request", "connect_request", "usage_request", "history_request"),
        *("complete_request", "inspect_request", "is_complete_request", "interrupt_request"),
        *("comm_info_request", "comm_open", "comm_msg", "comm_close", "input_reply"),
        *("create_subshell_request", "delete_subshell_request", "list_subshell_request"),
    ]
)
_DEBUG_COMMANDS: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        [
            *("debugInfo", "initialize", "attach", "configurationDone", "disconnect", "dumpCell"),
            *("source", "modules", "threads", "stackTrace", "scopes", "variables"),
            *("inspectVariables", "richInspectVariables", "copyToGlobals"),
            *("continue", "next", "stepIn", "stepOut", "pause"),
        ],
        frozenset(),
    ),
    "setBreakpoints": frozenset({"condition", "hitCondition", "logMessage"}),
    "setExceptionBreakpoints": frozenset({"condition"}),
}
"""The commands of a debugger that run no code, with the fields, at any depth, that would."""


def expect_no_cell(frame: bytes) -> None:
    """Check that a request is none to run a cell, which belongs on the shell channel. Raises BadRequest."""
    if _type_of(frame) == EXECUTE:
        raise BadRequest("send an execute_request on the channel shell: cells run in their order")


def expect_no_code(frame: bytes) -> None:
    """Check that a request runs no code that nobody has assessed. Raises PolicyRefused, BadRequest."""
    kind = _type_of(frame)
    if kind in _RUN_NO_CODE:
        return
    what = kind
    if kind == DEBUG:
        content = _content_of(frame)
        what = str(content.get("command"))
        fields = _DEBUG_COMMANDS.get(what)
        if fields is not None and not _has(content.get("arguments"), fields):
            return
    raise PolicyRefused(
        f"{what!r} would run code that the policy has not assessed, so it is refused; run it as a cell"
    )


def debug_failure(frame: bytes, message: str) -> dict[str, Any]:
    """Return the answer to a debugger's request that failed, as the Debug Adapter Protocol has it."""
    asked: dict[str, Any] = {}
    with contextlib.suppress(BadRequest):
        asked = _content_of(frame)
    return {
        "type": "response",
        "request_seq": asked.get("seq", 0),
        "command": asked.get("command", ""),
        "success": False,
        "message": message,
    }


def _content_of(frame: bytes) -> dict[str, Any]:
    """Raises BadRequest if it is no object."""
    try:
        return decode_as(split_frame(frame)[_CONTENT], dict[str, Any])
    except ProtocolError as exc:
        raise BadRequest(f"the content of the request is invalid: {exc}") from exc


def _type_of(frame: bytes) -> str:
    return decode_as(split_frame(frame)[1], RequestHeader).msg_type


def _has(value: Any, fields: frozenset[str]) -> bool:
    """Whether one of these fields has a value, at any depth."""
    waiting = [value]
    while waiting:
        match waiting.pop():
            case list(values):
                waiting += values
            case dict(named):
                if any(named.get(field) for field in fields):
                    return True
                waiting += named.values()
    return False
