"""The data of a figure, sent with its picture: type, title, axes and points.

E2B's library extracts it. A figure that it does not know, or that is too large, has none: whatever fails
here, the plot is shown as without it.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import sys
import warnings
from typing import Any

from IPython.core.formatters import BaseFormatter
from traitlets import ObjectName, Unicode

from . import e2b_forms
from .contract import CHART_MIME
from .hooks import request_options
from .time_limit import TimeIsUp, time_limit

MAX_POINTS = 5_000
MAX_BYTES = 1024**2
"""The size of the data, as JSON."""
_SECONDS = 1.0
_UNKNOWN = "unknown"
_LIBRARY = "e2b_charts"


class ChartFormatter(BaseFormatter):
    """Formats matplotlib's figures as their data, for the broker's requests only."""

    format_type = Unicode(CHART_MIME)
    print_method = ObjectName("_kernelbroker_chart_")
    _return_type = dict
    shell: Any = None

    def __call__(self, value: Any) -> dict[str, Any] | None:
        module = sys.modules.get("matplotlib.figure")
        if module is None or not isinstance(value, module.Figure):
            return None
        if not request_options(self.shell):  # another client, which expects a stock kernel
            return None
        return chart_of(value) or (_unknown(value) if e2b_forms.is_asked_for() else None)


def install(shell: Any) -> None:
    """Add the formatter to a shell."""
    display = shell.display_formatter
    display.formatters[CHART_MIME] = formatter = ChartFormatter(parent=display)
    formatter.shell = shell


def load() -> None:
    """Load the library if the template loads matplotlib, so that the first plot is not slower."""
    if "matplotlib.pyplot" in sys.modules:
        with contextlib.suppress(Exception), warnings.catch_warnings():
            importlib.import_module(_LIBRARY)


def chart_of(figure: Any) -> dict[str, Any] | None:
    """Return the data of a figure, as JSON values; None if there is none."""
    try:
        if not 0 < _points(figure) <= MAX_POINTS:
            return None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            library = importlib.import_module(_LIBRARY)  # on a busy machine it takes a second alone
        with warnings.catch_warnings(), time_limit(_SECONDS):
            warnings.simplefilter("ignore")
            chart = library.chart_figure_to_chart(figure)
            data = (
                None if chart is None else _plain(chart.model_dump(mode="json", fallback=_scalar))
            )
    except (Exception, TimeIsUp):
        return None
    if data is None or not _is_known(data):
        return None
    return data if len(json.dumps(data)) <= MAX_BYTES else None


def _unknown(figure: Any) -> dict[str, Any]:
    """What E2B's clients expect of a figure that shows no chart which the library knows."""
    titles = [axes.get_title() for axes in figure.axes]
    return {"type": _UNKNOWN, "title": next(filter(None, titles), None), "elements": []}


def _points(figure: Any) -> int:
    """The number of points, bars and wedges that the axes show. None if an axis is no plane one."""
    count = 0
    for axes in figure.axes:
        if axes.name != "rectilinear":  # the library would take points in space for flat ones
            return 0
        count += sum(len(line.get_xdata()) for line in axes.lines)
        count += sum(len(each.get_offsets()) for each in axes.collections)
        count += len(axes.patches)
    return count


def _is_known(data: dict[str, Any]) -> bool:
    """Whether the library knows what the figure, or a part of it, shows."""
    if data["type"] != "superchart":
        return bool(data["type"] != _UNKNOWN and data["elements"])
    return any(_is_known(part) for part in data["elements"])


def _scalar(value: Any) -> Any:
    """A value that is no JSON, such as NumPy's integers, which pandas has for ticks."""
    return value.item() if hasattr(value, "item") else str(value)


def _plain(value: Any) -> Any:
    """JSON has no numbers such as infinity; they become null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return value
