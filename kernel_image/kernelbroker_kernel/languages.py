"""Cells in other languages than Python: the kernel runs `contract.LANGUAGE_CODE` in their place.

The code rides in the request's metadata. What such a cell prints, how it is interrupted and what it
does to the workspace is as with a Python cell; it sees the same directory and environment variables.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from IPython.core.getipython import get_ipython

from . import javascript, shell
from .foreign import ForeignError, Interrupted
from .helper import Helper, asked_for, installed

_RUN: dict[str, Callable[[Helper, str, str | None], None]] = {
    "shell": shell.run,
    "javascript": javascript.run,
}


def run() -> None:
    """Entry point of the cell. Raises ForeignError where the code failed, Interrupted where it was."""
    ipython: Any = get_ipython()
    asked = asked_for(ipython).get("foreign")
    helper = installed(ipython)
    if not isinstance(asked, dict) or helper is None:
        raise ForeignError("Error", "the kernel lacks what it takes to run another language")
    code, name = asked.get("code"), asked.get("result_var")
    helper.foreign_names = {}
    try:
        _RUN[asked["language"]](helper, str(code), name if isinstance(name, str) else None)
    except KeyboardInterrupt:
        raise Interrupted from None
