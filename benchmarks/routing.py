"""Measures the time to decide where a cell runs: its assessment in a process, and the choice of a template.

It is what `template = "auto"` adds to a cell that stays where it is.
"""

from __future__ import annotations

import asyncio
import sys
from time import perf_counter
from types import SimpleNamespace
from typing import Any

from figures import Target, arguments, median_ms, report
from kernelbroker_server.backends.base import Isolation, SandboxSpec
from kernelbroker_server.service.assessor import Assessor
from kernelbroker_server.sessions.routes import Routes

CELLS = {
    "a short cell": ("python", "total = sum(values)"),
    "a page of pandas": (
        "python",
        "import pandas as pd\ndf = pd.read_csv('in.csv')\ndf.groupby('a').b.sum()\n" * 10,
    ),
    "a shell command": ("shell", "grep -r needle . | wc -l"),
}


def _pool(template: str, isolation: Isolation) -> Any:
    backend = SimpleNamespace(isolation=isolation)
    return SimpleNamespace(spec=SandboxSpec(template=template), backend=backend)


async def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in CELLS}
    pools = {
        "default": _pool("default", Isolation.BUBBLEWRAP),
        "box": _pool("box", Isolation.GVISOR),
    }
    assessor, routes = Assessor(), Routes(pools)
    try:
        for round_number in range(rounds + 1):
            for name, (language, code) in CELLS.items():
                begun = perf_counter()
                routes.decide(code, await assessor.assess(code, language))
                if round_number:  # the first one starts the process
                    times[name].append(perf_counter() - begun)
    finally:
        await assessor.stop()
    return times


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=200)
    times = asyncio.run(measure(options.rounds))
    targets = [Target(f"{name}, p50 in ms", median_ms(times[name]), 5) for name in CELLS]
    return report(times, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
