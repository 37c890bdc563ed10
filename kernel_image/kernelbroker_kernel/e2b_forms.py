"""Forms of values that E2B's kernels have besides IPython's: a table as its columns, and lists as JSON.

Only sessions that E2B's clients have opened send them. They have the variable `E2B_SANDBOX`, as E2B's
sandboxes do.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
from typing import Any

from IPython.core.formatters import BaseFormatter, JSONFormatter
from traitlets import ObjectName, Unicode

from .contract import E2B_DATA_MIME

_VARIABLE = "E2B_SANDBOX"
_MAX_CELLS = 100_000
_MAX_CHARS = 1024**2


def is_asked_for() -> bool:
    """Whether the session is one of E2B's clients."""
    return os.environ.get(_VARIABLE) == "true"


class DataFormatter(BaseFormatter):
    """Formats a frame of pandas as its columns: ``{name: [value]}``."""

    format_type = Unicode(E2B_DATA_MIME)
    print_method = ObjectName("_repr_e2b_data_")
    _return_type = dict

    def __call__(self, value: Any) -> dict[str, Any] | None:
        pandas = sys.modules.get("pandas")
        if pandas is None or not is_asked_for() or not isinstance(value, pandas.DataFrame):
            return None
        with contextlib.suppress(Exception):  # of a user's own class
            if value.size <= _MAX_CELLS:
                columns = value.to_dict(orient="list").items()
                return {str(name): [_plain(each) for each in column] for name, column in columns}
        return None


class JsonFormatter(JSONFormatter):
    """Formats lists and dictionaries as they are, and all else as IPython does."""

    def __call__(self, value: Any) -> Any:
        if type(value) in (list, dict) and is_asked_for():
            with contextlib.suppress(Exception):
                text = json.dumps(value, default=_plain, allow_nan=False)
                if len(text) <= _MAX_CHARS:
                    return json.loads(text)
            return None
        return super().__call__(value)


def install(shell: Any) -> None:
    """Add the formatters to a shell."""
    display = shell.display_formatter
    display.formatters[E2B_DATA_MIME] = DataFormatter(parent=display)
    display.formatters["application/json"] = JsonFormatter(parent=display)


def _plain(value: Any) -> Any:
    """A value as JSON has it: dates in ISO 8601, nothing for what is missing, else a text."""
    if hasattr(value, "item") and getattr(value, "ndim", 0) == 0:  # of NumPy
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "isoformat"):
        text = value.isoformat()
        return None if text == "NaT" else text
    return str(value)
