"""Statistics of measured times: percentiles, a table, and a comparison with the targets."""

from __future__ import annotations

import argparse
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Target:
    """The upper bound of a figure, or the lower bound if `at_least`."""

    name: str
    figure: float
    bound: float
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.figure >= self.bound if self.at_least else self.figure <= self.bound

    def __str__(self) -> str:
        sign = ">=" if self.at_least else "<="
        verdict = "ok" if self.met else "MISSED"
        return f"{self.name:<44}{self.figure:>9.2f}   {sign} {self.bound:<8.6g} {verdict}"


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that this percentage of the values does not exceed."""
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, int(len(ranked) * percent / 100))]


def median_ms(times_s: Sequence[float]) -> float:
    return statistics.median(times_s) * 1000


def arguments(
    description: str, default_rounds: int, *, against: bool = False
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=default_rounds)
    parser.add_argument("--no-check", action="store_true", help="only report; exit with 0")
    if against:
        help_ = "a checkout whose broker is measured as well"
        parser.add_argument("--against", type=Path, metavar="DIR", help=help_)
    return parser.parse_args()


def report(times_s: dict[str, list[float]], targets: list[Target], *, check: bool) -> int:
    """Print the figures and the targets. Return 1 if a target is missed and the check is on."""
    load = os.getloadavg()[0]
    print(f"{datetime.now(UTC):%Y-%m-%d}, {os.cpu_count()} cores, load {load:.1f}\n")
    print(f"{'':<36}{'count':>6}{'p50 ms':>10}{'p90 ms':>10}{'p99 ms':>10}")
    for name, values in times_s.items():
        row = [percentile(values, percent) * 1000 for percent in (90, 99)]
        cells = "".join(f"{ms:>10.2f}" for ms in (median_ms(values), *row))
        print(f"{name:<36}{len(values):>6}{cells}")
    print("", *targets, sep="\n")
    return int(check and not all(target.met for target in targets))
