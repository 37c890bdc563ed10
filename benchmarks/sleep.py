"""Measures how long a sleeping session takes to run its next cell, and what of that is loading.

Of each session the time from sending a cell to its result is measured: asleep, and awake. What loading
takes inside the kernel is the difference between a session that holds little and one that holds a table.
"""

from __future__ import annotations

import asyncio
import sys
from time import perf_counter

import kernelbroker
from figures import Target, arguments, median_ms, report
from kernelbroker_side import running_broker, until_warm

SMALL = "rows = [1, 2, 3]; total = sum(rows)\ndef double(n): return n * 2"
LARGE = (
    "import numpy as np, pandas as pd\n"
    "df = pd.DataFrame(np.random.rand(1_000_000, 10), columns=list('abcdefghij'))"
)
WAKE_SMALL, WAKE_LARGE, AWAKE = "wake with a few values", "wake with 1M x 10 (80 MB)", "awake"
WARM = 2
ASLEEP_S = 60.0


async def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {WAKE_SMALL: [], WAKE_LARGE: [], AWAKE: []}
    settings = {
        "KERNELBROKER_SESSIONS__CHECKPOINT": "on_idle",
        "KERNELBROKER_SESSIONS__SLEEP_AFTER": "0.2",
    }
    async with running_broker(warm=WARM, **settings) as broker:
        for name, code in ((WAKE_SMALL, SMALL), (WAKE_LARGE, LARGE)):
            async with broker.session() as session:
                (await session.run(code)).raise_for_error()
                for round_number in range(rounds + 1):
                    await until_asleep(broker)
                    await until_warm(broker, WARM)
                    marks = [perf_counter()]
                    for _ in range(2):
                        (await session.run("1")).raise_for_error()
                        marks.append(perf_counter())
                    if round_number:  # the first one also compiles what all of them need
                        times[name].append(marks[1] - marks[0])
                        times[AWAKE].append(marks[2] - marks[1])
    return times


async def until_asleep(broker: kernelbroker.Broker) -> None:
    async with asyncio.timeout(ASLEEP_S):
        while True:
            if (await broker.health())["asleep"]:
                return
            await asyncio.sleep(0.02)


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=20)
    times = asyncio.run(measure(options.rounds))
    targets = [Target("wake with a few values, p50 in ms", median_ms(times[WAKE_SMALL]), 150)]
    return report(times, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
