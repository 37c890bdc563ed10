"""Writes the results as Markdown: tables of figures with ratios, and the table of probes."""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from typing import Any

from figures import percentile

from peers.measures import MEASURES, Measure
from peers.probes import PROBES

FLOOR = "jupyter_client"
CELLS = ("one", "print", "report", "plot", "first_byte", "stream")
MISSING = "–"


def render(results: Mapping[str, Any]) -> str:
    """Return the whole page."""
    peers = results["peers"]
    rows = {each.key: each for each in MEASURES}
    load = " to ".join(map(str, results["load"]))
    parts = [
        "# Beside other projects",
        f"Measured on {results['date']} in {results['minutes']} minutes: {results['machine']}, "
        f"load {load}, "
        f"{results['rounds']} rounds. All peers took turns in one run. A cell has the median, the 99th "
        "percentile (with few values: the largest one), and the ratio of the median to that of raw "
        "jupyter_client.",
        "## Cells, in milliseconds",
        _figures(peers, [rows[key] for key in CELLS]),
        "## Sessions, in milliseconds and MiB",
        _figures(peers, [each for each in MEASURES if each.key not in CELLS]),
        "## Many sessions at once",
        _many(peers),
        "## What each keeps",
        "Each entry was tried, by a cell or a cut connection, not read in a manual. ✓ kept, ~ in part, "
        "✗ not.",
        _probes(peers),
        "## How each was used",
        _modes(peers),
    ]
    notes = _notes(peers)
    if notes:
        parts += ["## Not measured", notes]
    return "\n\n".join(parts) + "\n"


def median(peer: Mapping[str, Any], measure: Measure) -> float | None:
    """Return a median in the measure's unit, or None."""
    values: list[float] | None = peer["values"].get(measure.key)
    if not values:
        return None
    return statistics.median(values) * (1000 if measure.unit == "ms" else 1)


def shown(value: float) -> str:
    if value >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _figures(peers: list[dict[str, Any]], measures: list[Measure]) -> str:
    floor = next((each for each in peers if each["name"] == FLOOR), None)
    lines = _head(["", *(f"{each.title} ({each.unit})" for each in measures)])
    for peer in peers:
        if peer["unavailable"]:
            continue
        cells = []
        for measure in measures:
            value = median(peer, measure)
            if value is None:
                cells.append(MISSING)
                continue
            high = percentile(peer["values"][measure.key], 99)
            high *= 1000 if measure.unit == "ms" else 1
            base = floor and median(floor, measure)
            ratio = f" ({value / base:.2f})" if base else ""
            cells.append(f"{shown(value)} / {shown(high)}{ratio}")
        lines.append(_row([_name(peer), *cells]))
    return "\n".join(lines)


def _many(peers: list[dict[str, Any]]) -> str:
    sizes = sorted({int(size) for peer in peers for size in peer["throughput"]})
    head = [""]
    for size in sizes:
        word = "session" if size == 1 else "sessions"
        head += [f"{size} {word}: cells/s", "all opened after, s"]
    lines = _head(head)
    for peer in peers:
        if peer["unavailable"]:
            continue
        cells = []
        for size in sizes:
            found = peer["throughput"].get(str(size))
            if found is None:
                cells += [MISSING] * 2
                continue
            failed = f", {found['failed']:.0f} failed" if found["failed"] else ""
            cells += [
                shown(found["rate"]) + failed,
                f"{found['ready']:.2f}",
            ]
        lines.append(_row([_name(peer), *cells]))
    return "\n".join(lines)


def _probes(peers: list[dict[str, Any]]) -> str:
    signs = {"kept": "✓", "partly": "~", "lost": "✗"}
    lines = _head(["", *(probe.title for probe in PROBES.values())])
    for peer in peers:
        if not peer["probes"]:
            continue
        cells = []
        for name in PROBES:
            word, _, note = peer["probes"].get(name, MISSING).partition(": ")
            cells.append(f"{signs.get(word, word)} {note}".strip().replace("|", "\\|"))
        lines.append(_row([_name(peer), *cells]))
    return "\n".join(lines)


def _modes(peers: list[dict[str, Any]]) -> str:
    lines = _head(["", "version", "mode"])
    for peer in peers:
        lines.append(_row([_name(peer), version(peer), peer["mode"]]))
    return "\n".join(lines)


PACKAGES = {
    "kernelbroker": "kernelbroker",
    "jupyter_client": "jupyter_client",
    "kernel gateway": "jupyter_kernel_gateway",
    "enterprise gateway": "jupyter_enterprise_gateway",
    "autogen": "autogen-ext",
}


def version(peer: Mapping[str, Any]) -> str:
    """Return the version of the peer's own package in its environment."""
    wanted = PACKAGES.get(peer["name"], peer["name"].partition(",")[0])
    found = dict(each.split("==", 1) for each in peer["versions"] if "==" in each)
    names = {name.lower().replace("_", "-"): number for name, number in found.items()}
    return str(names.get(wanted.replace("_", "-"), MISSING))


def _notes(peers: list[dict[str, Any]]) -> str:
    lines = []
    for peer in peers:
        if peer["unavailable"]:
            lines.append(f"- **{peer['name']}** cannot run here: {peer['unavailable']}")
        for name, error in peer["errors"].items():
            lines.append(f"- {peer['name']}, {name}: {error}")
    return "\n".join(lines)


def _name(peer: Mapping[str, Any]) -> str:
    return f"**{peer['name']}**" if peer["name"] == "kernelbroker" else str(peer["name"])


def _head(titles: list[str]) -> list[str]:
    return [_row(titles), "|" + "---|" * len(titles)]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(cells) + " |"
