"""Measures many sessions of the `local` backend: restarts, twenty and two hundred at once, a burst.

- Restarts of one session, each with a full pool; then a hundred in a row, without waiting for the pool.
- Twenty sessions opened at once with default settings, each with a pandas cell.
- A burst: fifty sessions, each of one pandas cell, share a pool of ten.
- Two hundred sessions opened at once; all are held, and each runs a pandas cell. Memory is the PSS of all
  processes in sandboxes; PSS divides a shared page among its processes. Run it as root or as the owner of
  the sandboxes.

Every cell's output is checked; a wrong one ends the benchmark.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from time import perf_counter

import kernelbroker
from figures import Target, arguments, median_ms, percentile, report
from kernelbroker_side import running_broker, scratch_directory, until_warm
from pool import memory_mib

WARM = 3
RESTARTS_IN_A_ROW = 100
HELD, BURST, BURST_POOL, MANY = 20, 50, 10, 200
DEADLINE_S = 300.0
WAITING = {
    "KERNELBROKER_POOL__ACQUIRE_TIMEOUT": str(DEADLINE_S),
    "KERNELBROKER_POOL__MAX_WAITERS": str(MANY),
}
"""By default some of so many openings are refused at once."""


async def restarts(rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of each restart with a full pool, and of each one in a row."""
    calm: list[float] = []
    in_a_row: list[float] = []
    async with running_broker(warm=WARM) as broker, broker.session() as session:
        for times, count in ((calm, rounds), (in_a_row, RESTARTS_IN_A_ROW)):
            for number in range(count):
                if times is calm:
                    await until_warm(broker, WARM)
                begin = perf_counter()
                await session.restart()
                times.append(perf_counter() - begin)
                if times is calm:
                    await pandas_cell(session, number)
        await pandas_cell(session, 0)
    return calm, in_a_row


async def pandas_cell(session: kernelbroker.Session, number: int) -> None:
    code = f"import pandas; print(pandas.Series([{number}, 1]).sum())"
    result = await session.run(code, timeout=DEADLINE_S)
    if not result.success or result.stdout != f"{number + 1}\n":
        raise RuntimeError(f"cell {number} gave {result}")


async def held(count: int, **settings: str) -> tuple[float, float]:
    """Open sessions at once and run a cell in each. Returns seconds until the last, and MiB of one."""
    with scratch_directory() as directory:
        places = {f"KERNELBROKER_LOCAL__{key}": str(directory) for key in ("DATA_DIR", "RUN_DIR")}
        async with (
            running_broker(warm=WARM, **places, **settings) as broker,
            asyncio.timeout(DEADLINE_S),
            AsyncExitStack() as open_sessions,
        ):

            async def one(number: int) -> None:
                await pandas_cell(
                    await open_sessions.enter_async_context(broker.session()),
                    number,
                )

            begin = perf_counter()
            async with asyncio.TaskGroup() as group:
                for number in range(count):
                    group.create_task(one(number))
            seconds = perf_counter() - begin
            warm = (await broker.pool_status())["idle_containers"]
            return seconds, memory_mib(directory) / (count + warm)


async def burst() -> float:
    """Seconds until the last of many short sessions on a small pool has ended."""
    async with (
        running_broker(
            warm=BURST_POOL,
            KERNELBROKER_POOL__MAX_SIZE=str(BURST_POOL),
            **WAITING,
        ) as broker,
        asyncio.timeout(DEADLINE_S),
    ):

        async def one(number: int) -> None:
            async with broker.session() as session:
                await pandas_cell(session, number)

        begin = perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(BURST):
                group.create_task(one(number))
        return perf_counter() - begin


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=30)
    calm, in_a_row = asyncio.run(restarts(options.rounds))
    held_s, _ = asyncio.run(held(HELD))
    burst_s = asyncio.run(burst())
    many_s, many_mib = asyncio.run(
        held(
            MANY,
            KERNELBROKER_POOL__MAX_SIZE=str(MANY + WARM),
            **WAITING,
        )
    )
    times = {"restart, full pool": calm, "restart, in a row": in_a_row}
    targets = [
        Target("restart, p50 in ms", median_ms(calm), 50),
        Target("restart in a row, slowest in ms", percentile(in_a_row, 100) * 1000, 500),
        Target(f"{HELD} sessions at once, last one in s", held_s, 4),
        Target(f"burst of {BURST} on {BURST_POOL}, last one in s", burst_s, 12),
        Target(f"{MANY} sessions held, MiB each", many_mib, 60),
    ]
    status = report(times, targets, check=not options.no_check)
    print(f"\n{MANY} sessions held: the last one had run its cell after {many_s:.1f} s")
    return status


if __name__ == "__main__":
    sys.exit(main())
