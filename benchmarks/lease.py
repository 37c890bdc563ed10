"""Measures the time to lease a warm sandbox through the SDK, and the time of the first cell in it.

A lease here is the whole `async with broker.session()`: connect, WebSocket handshake, lease, the
broker's answer. Before each one the pool is full again, so that no launch takes its processor.
"""

from __future__ import annotations

import asyncio
import sys
from time import perf_counter

from figures import Target, arguments, median_ms, report
from kernelbroker_side import running_broker, until_warm

WARM = 2
LEASE, FIRST_CELL, SECOND_CELL = "lease", "first cell after it", "second cell"


async def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {LEASE: [], FIRST_CELL: [], SECOND_CELL: []}
    async with running_broker(warm=WARM) as broker:
        for round_number in range(rounds + 1):
            await until_warm(broker, WARM)
            marks = [perf_counter()]
            async with broker.session() as session:
                marks.append(perf_counter())
                for _ in (FIRST_CELL, SECOND_CELL):
                    (await session.run("1")).raise_for_error()
                    marks.append(perf_counter())
            if (
                round_number
            ):  # the first one also imports and compiles the modules that all of them need
                for name, begin, end in zip(times, marks, marks[1:], strict=False):
                    times[name].append(end - begin)
    return times


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=30)
    times = asyncio.run(measure(options.rounds))
    targets = [Target("lease, p50 in ms", median_ms(times[LEASE]), 10)]
    return report(times, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
