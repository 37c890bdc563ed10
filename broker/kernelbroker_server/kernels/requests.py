"""What a kernel is asked to run: a user's cell, an errand of the broker's own, the report behind a cell.

What an execution asks for rides in its request's metadata, where the helper finds it; no value ever
becomes part of code that is not the user's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel import contract

from .framing import Outgoing
from .outputs import OutputLimits

REPORT_BYTES = 1024 * 1024
"""What the helper is asked to keep a report to."""


@dataclass(frozen=True, slots=True)
class Errand:
    """A cell of ours in the place of a user's: constant code, and what it is to do.

    Attributes:
        silent: it leaves no trace in the kernel's history.
        on_answer: called with what it publishes as `contract.ERRAND_MIME`; of any form.
        packages: what it installs, for those who are told of it.
    """

    code: str
    asked: Mapping[str, Any]
    silent: bool = True
    on_answer: Callable[[Any], None] = lambda _: None
    packages: Sequence[str] = ()


def cell(
    request: ExecutionRequest, limits: OutputLimits, allow_stdin: bool, errand: Errand | None
) -> Outgoing:
    """The user's code, or an errand in its place."""
    asked: dict[str, Any] = {
        "on_error": request.on_error,
        "max_variables": limits.max_variables,
        "env": {**request.env, **request.secrets},
    }
    if request.cwd is not None:
        asked["cwd"] = request.cwd
    code = request.code
    if errand is not None:
        return execute_request(errand.code, {**asked, **errand.asked}, silent=errand.silent)
    if request.language != "python":
        asked["foreign"] = {
            "language": request.language,
            "code": code,
            "result_var": request.result_var,
        }
        code = contract.LANGUAGE_CODE
    return execute_request(code, asked, silent=False, allow_stdin=allow_stdin)


def report_cell(request: ExecutionRequest) -> Outgoing:
    """Serializes the variable that was asked for; to be sent right behind the cell."""
    asked = {
        "result_var": request.result_var,
        "preview_rows": request.preview_rows,
        "max_bytes": REPORT_BYTES,
    }
    return execute_request(contract.REPORT_CODE, {"report": asked})


def execute_request(
    code: str, asked: dict[str, Any], *, silent: bool = True, allow_stdin: bool = False
) -> Outgoing:
    """A request to run code; `asked` rides in its metadata, for the helper."""
    content = {
        "code": code,
        "silent": silent,
        "store_history": not silent,
        "user_expressions": {},
        "allow_stdin": allow_stdin,
        "stop_on_error": False,  # else a failing cell would abort the report pipelined behind it
    }
    return Outgoing("shell", "execute_request", content, {contract.METADATA_KEY: asked})
