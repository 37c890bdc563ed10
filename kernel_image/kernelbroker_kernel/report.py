"""The report cell: sends what `result_var` holds, after a cell that went well.

The broker runs `contract.REPORT_CODE` silently behind the user's cell. It leaves no name behind and
does not fail, whatever the variable holds; only an interrupt ends it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from IPython.core.getipython import get_ipython

from . import readers, returns, tables
from .contract import REPORT_MIME
from .helper import asked_for, installed, publish
from .texts import safe_text
from .values import json_size

PREVIEW_ROWS = 10
MAX_PREVIEW_ROWS = 500
MAX_BYTES = 1024**2
OVERHEAD_BYTES = 1_000
"""Room for what stands around the value."""


def run() -> None:
    """Entry point of the report cell. Sends nothing where the user's cell failed."""
    shell: Any = get_ipython()
    helper = installed(shell)
    asked = asked_for(shell).get("report")
    if helper is not None and not helper.failed and isinstance(asked, dict):
        names = shell.user_ns if helper.foreign_names is None else helper.foreign_names
        publish(shell, REPORT_MIME, report(names, asked))


def report(names: Mapping[str, Any], asked: Mapping[str, Any]) -> dict[str, Any]:
    """The report's payload: ``{"dataframe": …}`` or ``{"return_value": …}``, and what was cut."""
    name = asked.get("result_var")
    if not isinstance(name, str) or not name.isidentifier() or name not in names:
        return _nothing(f"no variable named {safe_text(name, 100)!r}")
    rows = min(_whole_number(asked.get("preview_rows"), PREVIEW_ROWS), MAX_PREVIEW_ROWS)
    max_bytes = _whole_number(asked.get("max_bytes"), MAX_BYTES)
    try:
        payload = _describe(name, names[name], rows, max_bytes - OVERHEAD_BYTES)
        if json_size(payload) > max_bytes:
            return _nothing(f"the value does not fit into {max_bytes} bytes")
        return payload
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # from a user's class or a library's: it must not fail the cell
        return _nothing(f"the value could not be read: {type(error).__name__}")


def _describe(name: str, value: object, rows: int, max_bytes: int) -> dict[str, Any]:
    table = readers.read(value, rows)
    if table is not None:
        key = "dataframe"
        described, cut = tables.render(table, name, max_bytes)
    else:
        key = "return_value"
        described, cut = returns.describe(value, rows, max_bytes)
    return {key: described} if cut is None else {key: described, "truncated": cut}


def _nothing(why: str) -> dict[str, Any]:
    return {"return_value": None, "truncated": why}


def _whole_number(value: object, default: int) -> int:
    return value if type(value) is int and value >= 0 else default
