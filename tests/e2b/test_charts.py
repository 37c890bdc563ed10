"""The data of figures, of each kind, as the SDK and as E2B's client give it."""

from __future__ import annotations

import json
from typing import Any

import kernelbroker
import pytest

from tests.e2b.support import E2bClients
from tests.e2e.support import BrokerProcess, whole_system

pytestmark = whole_system

_AXES = "axes.set_title('T'); axes.set_xlabel('time (s)'); axes.set_ylabel('Y')"
KINDS: dict[str, tuple[str, list[Any]]] = {
    "line": (
        "axes.plot([1, 2], [3, 4], label='a'); axes.plot([1, 2], [5, 6], label='b')",
        [["a", [[1, 3], [2, 4]]], ["b", [[1, 5], [2, 6]]]],
    ),
    "scatter": ("axes.scatter([1, 2], [3, 4], label='a')", [["a", [[1, 3], [2, 4]]]]),
    "bar": ("axes.bar(['x', 'y'], [1, 2])", [["x", 1], ["y", 2]]),
    "pie": ("axes.pie([1, 3], labels=['x', 'y'])", [["x", 90], ["y", 270]]),
    "box_and_whisker": (
        "axes.boxplot([[1, 2, 3, 4, 5], [1, 5, 9]], tick_labels=['x', 'y'], patch_artist=True)",
        [["x", 3], ["y", 5]],
    ),
    "superchart": (
        "axes.plot([1, 2], label='a'); other.bar(['x'], [1])",
        [["line", "T"], ["bar", "of the other"]],
    ),
}
"""For each kind how it is drawn, and the elements."""
_CHARTS = """
from e2b_code_interpreter import Sandbox
def number(value):
    return round(float(value), 3)
def element(kind, each):
    match kind:
        case "line" | "scatter":
            return [each.label, [[number(x), number(y)] for x, y in each.points]]
        case "bar":
            return [each.label, number(each.value)]
        case "pie":
            return [each.label, number(each.angle)]
        case "box_and_whisker":
            return [each.label, number(each.median)]
        case _:
            return [each.type.value, each.title]
def shown(chart):
    labels = [getattr(chart, name, None) for name in ("x_label", "x_unit", "y_label")]
    return [chart.type.value, chart.title, labels, [element(chart.type.value, e) for e in chart.elements]]
"""


def code_of(kind: str) -> str:
    """A cell that shows a figure of this kind."""
    two = kind == "superchart"
    made = "figure, (axes, other) = plt.subplots(1, 2)" if two else "figure, axes = plt.subplots()"
    titled = "other.set_title('of the other')" if two else ""
    lines = ["import matplotlib.pyplot as plt", made, KINDS[kind][0], _AXES, titled, "plt.show()"]
    return "\n".join(lines)


async def test_the_sdk_has_the_data_of_a_figure(e2b_broker: BrokerProcess) -> None:
    """Each kind of figure is one picture with its type, title, axes and elements."""
    async with (
        kernelbroker.connect(e2b_broker.url, e2b_broker.token) as client,
        client.session() as session,
    ):
        for kind, (_, elements) in KINDS.items():
            (image,) = (await session.run(code_of(kind))).images
            chart = image.chart
            assert chart is not None and chart["type"] == kind, chart
            assert len(chart["elements"]) == len(elements)
            json.dumps(chart)
            if kind == "superchart":
                assert [each["type"] for each in chart["elements"]] == ["line", "bar"]
                continue
            names = [each["label"] for each in chart["elements"]]
            assert (chart["title"], names) == ("T", [name for name, _ in elements])
            if kind != "pie":
                assert (chart["x_label"], chart["x_unit"], chart["y_label"]) == (
                    "time (s)",
                    "s",
                    "Y",
                )


@pytest.mark.parametrize("kind", KINDS)
def test_e2bs_client_has_the_data_of_a_figure(e2b: E2bClients, kind: str) -> None:
    """Each kind of figure is one result with an object of its class, which has the elements."""
    found, title, labels, elements = e2b.python(
        f"{_CHARTS}\n"
        "with Sandbox.create() as sandbox:\n"
        f"    (result,) = [r for r in sandbox.run_code({code_of(kind)!r}).results if r.png]\n"
        "    report(shown(result.chart))"
    )
    assert (found, elements) == (kind, KINDS[kind][1])
    if kind != "superchart":
        assert title == "T"
    if kind not in ("superchart", "pie"):
        assert labels == ["time (s)", "s", "Y"]
