"""The messages that run code: a user's cell, an internal cell, and the report cell.

The options of an execution are in its request's metadata, where the kernel's hooks read them. No value
becomes part of any code but the user's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel import contract

from .framing import METADATA_PART, Outgoing, join_parts, split_frame
from .outputs import OutputLimits

REPORT_BYTES = 4 * 1024**2
"""The greatest size of a report, as JSON."""


@dataclass(frozen=True, slots=True)
class InternalCell:
    """A cell that the broker runs: constant code, and its options.

    Attributes:
        silent: it leaves no trace in the kernel's history.
        on_answer: called with the payload of `contract.INTERNAL_CELL_MIME`, which can be any JSON.
        packages: the packages that it installs, for observers.
    """

    code: str
    options: Mapping[str, Any]
    silent: bool = True
    on_answer: Callable[[Any], None] = lambda _: None
    packages: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class NotebookCell:
    """A cell of a Jupyter client. It reaches the kernel as the client has made it.

    Attributes:
        frame: the client's `execute_request`.
        msg_id: the id of that.
        silent: it leaves no trace, neither in the kernel's history nor in the session's.
        on_end: called with the result when that is stored.
    """

    frame: bytes
    msg_id: str
    silent: bool = False
    on_end: Callable[[Result], None] = lambda _: None


def notebook_options(limits: OutputLimits) -> dict[str, Any]:
    """Return the options of a notebook's cell, for the metadata of its request."""
    return {
        contract.METADATA_KEY: {
            "notebook": True,
            "on_error": "keep",
            "max_variables": limits.max_variables,
        }
    }


def cell(
    request: ExecutionRequest,
    limits: OutputLimits,
    allow_stdin: bool,
    internal_cell: InternalCell | None,
    notebook_cell: NotebookCell | None = None,
) -> Outgoing:
    """The request for the user's code, or for another cell in its place."""
    if (given := notebook_cell) is not None:
        return Outgoing("shell", "execute_request", {}, msg_id=given.msg_id, frame=given.frame)
    options: dict[str, Any] = {
        "on_error": request.on_error or "rollback",
        "max_variables": limits.max_variables,
        "env": {**request.env, **request.secrets},
    }
    if request.cwd is not None:
        options["cwd"] = request.cwd
    code = request.code
    if internal_cell is not None:
        options |= internal_cell.options
        return execute_request(internal_cell.code, options, silent=internal_cell.silent)
    if request.language not in (None, "python"):
        options["language"] = {
            "name": request.language,
            "code": code,
            "result_var": request.result_var,
        }
        code = contract.LANGUAGE_CODE
    return execute_request(code, options, silent=False, allow_stdin=allow_stdin)


def with_option(message: Outgoing, name: str, value: Any) -> Outgoing:
    """The request with another option; a client's own frame gets it, too."""
    if message.frame is None:
        options = {**message.metadata[contract.METADATA_KEY], name: value}
        return replace(message, metadata={**message.metadata, contract.METADATA_KEY: options})
    parts = split_frame(message.frame)
    metadata = decode_as(parts[METADATA_PART], dict[str, Any])
    metadata[contract.METADATA_KEY][name] = value
    parts[METADATA_PART] = encode(metadata)
    return replace(message, frame=join_parts(parts))


def report_cell(request: ExecutionRequest) -> Outgoing:
    """The request for the value of `result_var`, to be sent behind the cell."""
    options = {
        "result_var": request.result_var,
        "preview_rows": request.preview_rows,
        "max_bytes": REPORT_BYTES,
    }
    return execute_request(contract.REPORT_CODE, {"report": options})


def execute_request(
    code: str, options: dict[str, Any], *, silent: bool = True, allow_stdin: bool = False
) -> Outgoing:
    """A request to run code, with options for the kernel's hooks in its metadata."""
    content = {
        "code": code,
        "silent": silent,
        "store_history": not silent,
        "user_expressions": {},
        "allow_stdin": allow_stdin,
        "stop_on_error": False,  # otherwise a failing cell would abort the report behind it
    }
    return Outgoing(
        "shell",
        "execute_request",
        content,
        {contract.METADATA_KEY: options},
        internal=silent,
    )
