"""Measures `run("1")` on a warm kernel: kernelbroker, raw jupyter_client, and a stock Kernel Gateway.

All sides take turns in blocks, so that other load on the machine affects all of them. A raw round
trip ends with the reply *and* the idle status, like that of kernelbroker.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter

from baselines import raw_kernel, run_on_gateway, run_raw, run_raw_blocking, stock_gateway
from figures import Target, arguments, median_ms, report
from kernelbroker_side import running_broker

BLOCK = 10
WARM_UP = 20

KERNELBROKER, ASYNC, BLOCKING, GATEWAY = (
    "kernelbroker",
    "raw, async",
    "raw, blocking",
    "stock gateway",
)


async def measure(rounds: int) -> dict[str, list[float]]:
    async with (
        running_broker() as broker,
        broker.session() as session,
        raw_kernel() as (raw, raw_blocking),
        stock_gateway() as websocket,
    ):

        async def run_on_kernelbroker() -> None:
            (await session.run("1")).raise_for_error()

        async def blocking() -> None:
            run_raw_blocking(raw_blocking, "1")

        sides: dict[str, Callable[[], Awaitable[None]]] = {
            KERNELBROKER: run_on_kernelbroker,
            ASYNC: lambda: run_raw(raw, "1"),
            BLOCKING: blocking,
            GATEWAY: lambda: run_on_gateway(websocket, "1"),
        }
        times: dict[str, list[float]] = {name: [] for name in sides}
        for name, run in sides.items():
            await _block(run, WARM_UP, times[name])
            times[name].clear()
        for _ in range(rounds):
            for name, run in sides.items():
                await _block(run, BLOCK, times[name])
        return times


async def _block(run: Callable[[], Awaitable[None]], count: int, times: list[float]) -> None:
    for _ in range(count):
        begin = perf_counter()
        await run()
        times.append(perf_counter() - begin)


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=30)
    times = asyncio.run(measure(options.rounds))
    medians = {name: median_ms(values) for name, values in times.items()}
    targets = [
        Target("kernelbroker / raw async, medians", medians[KERNELBROKER] / medians[ASYNC], 2.0),
        Target(
            "kernelbroker / raw blocking, medians", medians[KERNELBROKER] / medians[BLOCKING], 2.0
        ),
        Target(
            "kernelbroker / stock gateway, medians", medians[KERNELBROKER] / medians[GATEWAY], 1.0
        ),
    ]
    return report(times, targets, check=not options.no_check)


if __name__ == "__main__":
    sys.exit(main())
