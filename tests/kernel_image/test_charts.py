"""The data of figures: what is extracted, what is not, and that a plot never suffers from it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pandas as pd
import pytest
from kernelbroker_kernel import charts
from matplotlib import pyplot


@pytest.fixture
def axes() -> Iterator[Any]:
    figure, axes = pyplot.subplots()
    yield axes
    pyplot.close(figure)


def test_a_line_has_points_titles_and_units(axes: Any) -> None:
    """Labels are split into names and units; a point that is no number is null."""
    axes.plot([1, 2, 3], [2, float("nan"), float("inf")], label="v")
    axes.set(title="Speed", xlabel="time (s)")
    chart = charts.chart_of(axes.figure)
    assert chart is not None
    assert (chart["type"], chart["title"], chart["x_label"], chart["x_unit"]) == (
        *("line", "Speed", "time (s)", "s"),
    )
    assert chart["elements"] == [{"label": "v", "points": [[1, 2], [2, None], [3, None]]}]


@pytest.mark.parametrize("freq", ["D", "MS", "h", "W"])
def test_a_regular_series_has_its_chart(axes: Any, freq: str) -> None:
    """pandas has numbers of NumPy for the ticks of a series with a frequency."""
    series = pd.Series(range(40), index=pd.date_range("2024-01-01", periods=40, freq=freq))
    series.plot(ax=axes)
    chart = charts.chart_of(axes.figure)
    assert chart is not None
    assert chart["type"] == "line"
    assert len(chart["elements"][0]["points"]) == 40
    assert json.loads(json.dumps(chart)) == chart


def test_bars_pies_and_scatters(axes: Any) -> None:
    """Each kind has its own elements; several axes are a superchart."""
    axes.bar(["a", "b"], [1, 2])
    axes.figure.canvas.draw()
    chart = charts.chart_of(axes.figure)
    assert chart is not None
    assert [(each["label"], each["value"]) for each in chart["elements"]] == [("a", 1), ("b", 2)]
    figure, (left, right) = pyplot.subplots(1, 2)
    left.pie([1, 3], labels=["x", "y"])
    right.scatter([1, 2], [3, 4])
    both = charts.chart_of(figure)
    pyplot.close(figure)
    assert both is not None
    assert both["type"] == "superchart"
    assert [each["type"] for each in both["elements"]] == ["pie", "scatter"]
    assert [each["label"] for each in both["elements"][0]["elements"]] == ["x", "y"]


def test_what_has_no_chart(axes: Any) -> None:
    """An image, an empty figure, axes in space, and too many points."""
    assert charts.chart_of(axes.figure) is None
    axes.imshow([[1, 2], [3, 4]])
    assert charts.chart_of(axes.figure) is None
    figure = pyplot.figure()
    figure.add_subplot(projection="3d").plot([1, 2], [1, 2], [1, 2])
    assert charts.chart_of(figure) is None
    pyplot.close(figure)
    figure, many = pyplot.subplots()
    many.plot(range(charts.MAX_POINTS + 1))
    assert charts.chart_of(figure) is None
    pyplot.close(figure)


def test_errors_and_slow_objects_are_no_ones_problem(
    axes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A title that raises or loops costs the chart, not the plot, and a second at most."""
    axes.plot([1, 2])

    def fail() -> str:
        raise RuntimeError("a user's own class")

    monkeypatch.setattr(axes, "get_title", fail)
    assert charts.chart_of(axes.figure) is None

    def loop() -> str:
        while True:
            pass

    monkeypatch.setattr(axes, "get_title", loop)
    monkeypatch.setattr(charts, "_SECONDS", 0.05)
    begin = time.monotonic()
    assert charts.chart_of(axes.figure) is None
    assert time.monotonic() - begin < 30


def test_a_large_chart_is_left_out(axes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The size of the data is bounded as well."""
    axes.plot([1, 2], label="x" * 1000)
    assert charts.chart_of(axes.figure) is not None
    monkeypatch.setattr(charts, "MAX_BYTES", 500)
    assert charts.chart_of(axes.figure) is None
