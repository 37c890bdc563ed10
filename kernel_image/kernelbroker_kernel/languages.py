"""Cells in other languages than Python: the kernel runs `contract.LANGUAGE_CODE` in their place.

The code is in the request's metadata. Output, interrupts, the workspace, the directory and the
environment variables work as in a Python cell.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.getipython import get_ipython

from . import javascript, shell
from .errors import CellError, Interrupted
from .hooks import CellHooks, installed, request_options

_RUN: dict[str, Callable[[CellHooks, str, str | None], None]] = {
    "shell": shell.run,
    "javascript": javascript.run,
}


def run() -> None:
    """Entry point of the cell. Raises CellError if the code fails, Interrupted if it is interrupted."""
    ipython: Any = get_ipython()
    options = request_options(ipython).get("language")
    hooks = installed(ipython)
    if not isinstance(options, dict) or hooks is None:
        raise CellError(
            "Error", "the request has no code to run, or the kernel's hooks are not loaded"
        )
    code, name = options.get("code"), options.get("result_var")
    hooks.reported_names = {}
    try:
        _RUN[options["name"]](hooks, str(code), name if isinstance(name, str) else None)
    except KeyboardInterrupt:
        raise Interrupted from None
