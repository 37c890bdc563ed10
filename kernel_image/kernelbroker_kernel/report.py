"""The report cell: sends the value of `result_var` after a cell that succeeded.

The broker runs `contract.REPORT_CODE` silently after the user's cell. It creates no name and does not
fail, for any value of the variable. An interrupt or the time limit ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.core.getipython import get_ipython

from . import preview, readers, return_value
from .contract import OPERATION_VARIABLE, REPORT_MIME
from .hooks import installed, publish, request_options
from .safe_repr import safe_text
from .time_limit import TimeIsUp, time_limit
from .values import json_size

PREVIEW_ROWS = 10
MAX_PREVIEW_ROWS = 500
MAX_BYTES = 4 * 1024**2
MAX_S = 30.0
"""The time for reading the value, which may run the user's code: `repr`, properties."""
OVERHEAD_BYTES = 1_000
"""Room for the JSON around the value."""


def run() -> None:
    """Entry point of the report cell. Sends nothing if the user's cell failed."""
    shell: Any = get_ipython()
    hooks = installed(shell)
    options = request_options(shell).get("report")
    if hooks is None or not isinstance(options, dict):
        return
    # An operation that was interrupted may tell how far it has come.
    if not hooks.failed or OPERATION_VARIABLE in (hooks.reported_names or ()):
        names = shell.user_ns if hooks.reported_names is None else hooks.reported_names
        publish(shell, REPORT_MIME, report(names, options))


def report(names: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """The report's payload: ``{"dataframe": …}`` or ``{"return_value": …}``, and a note about cut parts."""
    name = options.get("result_var")
    if not isinstance(name, str) or not name.isidentifier() or name not in names:
        return _nothing(f"no variable named {safe_text(name, 100)!r}")
    rows = min(_whole_number(options.get("preview_rows"), PREVIEW_ROWS), MAX_PREVIEW_ROWS)
    max_bytes = _whole_number(options.get("max_bytes"), MAX_BYTES)
    try:
        with time_limit(MAX_S):
            payload = _describe(name, names[name], rows, max_bytes - OVERHEAD_BYTES)
        if json_size(payload) > max_bytes:
            return _nothing(f"the value does not fit into {max_bytes} bytes")
        return payload
    except TimeIsUp:
        return _nothing(f"the value could not be read within {MAX_S:g} s")
    except BaseException as error:  # raised by a user's class: it must not fail the cell
        return _nothing(f"the value could not be read: {type(error).__name__}")


def _describe(name: str, value: object, rows: int, max_bytes: int) -> dict[str, Any]:
    table = readers.read(value, rows)
    if table is not None:
        key = "dataframe"
        described, cut = preview.render(table, name, max_bytes)
    else:
        key = "return_value"
        described, cut = return_value.describe(value, rows, max_bytes)
    return {key: described} if cut is None else {key: described, "truncated": cut}


def _nothing(why: str) -> dict[str, Any]:
    return {"return_value": None, "truncated": why}


def _whole_number(value: object, default: int) -> int:
    return value if type(value) is int and value >= 0 else default
