"""Draws the medians as bars on a logarithmic scale, in SVG without a library.

Colours follow the reader's light or dark scheme.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from typing import Any

from peers.markdown import median, shown
from peers.measures import MEASURES

OURS = "kernelbroker"
PANELS = ("one", "print", "plot", "first_byte", "stream", "first_line", "cold", "restart", "memory")
IN_HEADLINE = (OURS, "kern-sandbox", "kernel gateway", "llm-sandbox, container", "ipybox")
COLUMNS = 3
SHORT = {
    "cold": "open it and import pandas, nothing warm",
    "memory": "memory per session with pandas",
}
"""Titles that would not fit above a panel."""
PANEL, GAP, LABELS, VALUES = 330, 18, 146, 52
BAR, STEP, TITLE = 10, 16, 26
STYLE = """
text { font: 11px system-ui, 'DejaVu Sans', sans-serif; fill: #24292f }
.title { font-weight: bold; font-size: 12px }
.note { fill: #57606a }
.bar { fill: #8c959f }
.ours { fill: #0969da }
text.ours { font-weight: bold }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 }
  .note { fill: #9198a1 }
  .bar { fill: #656c76 }
  .ours { fill: #4493f8 }
}
"""


def render(results: Mapping[str, Any]) -> str:
    """Return the SVG; a panel for each measurement that has values, and one for cells a second."""
    panels = []
    for measure in MEASURES:
        if measure.key in PANELS:
            values = {peer["name"]: median(peer, measure) for peer in results["peers"]}
            panels.append(
                (f"{SHORT.get(measure.key, measure.title)}, {measure.unit}", values, False)
            )
    sizes = sorted({int(size) for peer in results["peers"] for size in peer["throughput"]})
    for size in [each for each in sizes if each > 1][:1]:
        values = {
            peer["name"]: peer["throughput"].get(str(size), {}).get("rate")
            for peer in results["peers"]
        }
        panels.append((f"{size} sessions at once, cells/s (more is better)", values, True))
    known = [(title, kept) for title, values, more in panels if (kept := _known(values, more))]

    y, parts = GAP + 16, []
    for first in range(0, len(known), COLUMNS):
        row = known[first : first + COLUMNS]
        for column, (title, kept) in enumerate(row):
            x = GAP + column * (PANEL + GAP)
            parts.append(_panel(title, kept, x, y))
        y += TITLE + STEP * max(len(kept) for _, kept in row) + GAP
    width = GAP + COLUMNS * (PANEL + GAP)
    note = f"Medians of one run on {results['date']}, {results['machine']}. "
    note += "Logarithmic scales; less is better."
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {y}" width="{width}" height="{y}" '
        f'role="img" aria-label="Medians of kernelbroker and other projects">\n<style>{STYLE}</style>\n'
        f'<text class="note" x="{GAP}" y="{GAP}">{escape(note)}</text>\n'
        + "".join(parts)
        + "</svg>\n"
    )


def headline(results: Mapping[str, Any]) -> str:
    """Return the SVG of the README: five projects, and the time until a new session has printed a line."""
    (measure,) = (each for each in MEASURES if each.key == "first_line")
    values = {peer["name"]: median(peer, measure) for peer in results["peers"]}
    return headline_of({name: values.get(name) for name in IN_HEADLINE}, results["date"])


def headline_of(values: Mapping[str, float | None], date: str) -> str:
    """Return the bars of these medians, in milliseconds."""
    known = _known(values, more=False)
    longest = max(value for _, value in known)
    width, row, left = 760, 30, 190
    lines = []
    for number, (name, value) in enumerate(known):
        top = 52 + number * row
        length = max(2.0, (width - left - 110) * value / longest)
        own = " ours" if name == OURS else ""
        lines.append(
            f'<text class="name{own}" x="{left - 10}" y="{top + 14}" text-anchor="end">'
            f"{escape(name)}</text>"
            f'<rect class="bar{own}" x="{left}" y="{top}" width="{length:.1f}" height="18" rx="3"/>'
            f'<text class="value" x="{left + length + 8:.1f}" y="{top + 14}">{value:,.0f} ms</text>\n'
        )
    title = "Open a session and print a line: median, in milliseconds (less is better)"
    height = 52 + len(known) * row + 10
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(title)}">\n'
        f"<style>{STYLE.replace('11px', '14px').replace('12px', '15px')}</style>\n"
        f'<text class="title" x="18" y="22">{escape(title)}</text>\n'
        f'<text class="note" x="18" y="41">One run of all, on {escape(date)}, 2 cores</text>\n'
        + "".join(lines)
        + "</svg>\n"
    )


def _known(values: Mapping[str, float | None], more: bool) -> list[tuple[str, float]]:
    """The peers that have a value, the best one first."""
    found = [(name, value) for name, value in values.items() if value]
    return sorted(found, key=lambda each: -each[1] if more else each[1])


def _panel(title: str, values: list[tuple[str, float]], x: int, y: int) -> str:
    lines = [f'<text class="title" x="{x}" y="{y + 12}">{escape(title)}</text>\n']
    least = 10 ** math.floor(math.log10(min(value for _, value in values)))
    decades = math.log10(max(value for _, value in values) / least) or 1
    room = PANEL - LABELS - VALUES
    for number, (name, value) in enumerate(values):
        top = y + TITLE + number * STEP
        length = max(2.0, room * math.log10(value / least) / decades)
        own = " ours" if name == OURS else ""
        base = top + BAR - 1
        lines.append(
            f'<text class="name{own}" x="{x + LABELS - 6}" y="{base}" text-anchor="end">'
            f"{escape(name)}</text>"
            f'<rect class="bar{own}" x="{x + LABELS}" y="{top}" width="{length:.1f}" '
            f'height="{BAR}" rx="2"/>'
            f'<text class="value" x="{x + LABELS + length + 4:.1f}" y="{base}">{shown(value)}</text>\n'
        )
    return "".join(lines)
