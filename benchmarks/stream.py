"""Measures streaming: the rate of 100,000 printed lines, and the delay of the first one.

The same cell runs alternately on kernelbroker and on a stock kernel with jupyter_client, and every
byte is counted. The second figure is the time until the client sees the first `print` without flush
of a running cell; the stock kernel delays it by 200 ms.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from contextlib import aclosing
from time import perf_counter

import kernelbroker
from baselines import raw_kernel, run_raw
from figures import Target, arguments, median_ms, report
from jupyter_client.asynchronous.client import AsyncKernelClient
from kernelbroker.protocol import events
from kernelbroker_side import running_broker

LINES, WIDTH = 100_000, 100
FLOOD = f"for _ in range({LINES}): print('x' * {WIDTH - 1})"
SLOW = "import time; print('now'); time.sleep(0.2)"
FIRST_PRINTS = 3
"""Of each round."""

KERNELBROKER, RAW = "100,000 lines, kernelbroker", "100,000 lines, raw"
FIRST, FIRST_RAW = "first print, kernelbroker", "first print, raw"


async def measure(rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in (KERNELBROKER, RAW, FIRST, FIRST_RAW)}
    async with (
        running_broker(KERNELBROKER_LIMITS__OUTPUT="64MiB") as broker,
        broker.session() as session,
        raw_kernel() as (raw, _),
    ):
        for round_number in range(rounds + 1):
            results = {KERNELBROKER: [await _flood(session)], RAW: [await _flood_raw(raw)]}
            results[FIRST] = [await _first_print(session) for _ in range(FIRST_PRINTS)]
            results[FIRST_RAW] = [await _first_print_raw(raw) for _ in range(FIRST_PRINTS)]
            if round_number:
                for name, values in results.items():
                    times[name] += values
    return times


async def _flood(session: kernelbroker.Session) -> float:
    begin = perf_counter()
    result = await session.run(FLOOD)
    end = perf_counter()
    _expect_all(result.stdout)
    return end - begin


async def _flood_raw(client: AsyncKernelClient) -> float:
    output: list[str] = []
    begin = perf_counter()
    await run_raw(client, FLOOD, output)
    end = perf_counter()
    _expect_all("".join(output))
    return end - begin


def _expect_all(text: str) -> None:
    if text != ("x" * (WIDTH - 1) + "\n") * LINES:
        raise AssertionError(f"{len(text):,} of {LINES * WIDTH:,} characters came, or others")


async def _first_print(session: kernelbroker.Session) -> float:
    begin = perf_counter()
    seen: float | None = None
    async with aclosing(session.stream(SLOW)) as stream:
        async for event in stream:
            if isinstance(event, events.Stdout) and seen is None:
                seen = perf_counter()
    assert seen is not None
    return seen - begin


async def _first_print_raw(client: AsyncKernelClient) -> float:
    begin = perf_counter()
    msg_id = client.execute(SLOW)
    seen = None
    while True:
        message = await client.get_iopub_msg()
        if message["parent_header"].get("msg_id") != msg_id:
            continue
        if message["msg_type"] == "stream" and seen is None:
            seen = perf_counter()
        if message["content"].get("execution_state") == "idle":
            break
    await client.get_shell_msg()
    assert seen is not None
    return seen - begin


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=10)
    times = asyncio.run(measure(options.rounds))
    ratio = statistics.median(times[RAW]) / statistics.median(times[KERNELBROKER])
    targets = [
        Target("rate of 100,000 lines, kernelbroker / raw", ratio, 0.8, at_least=True),
        Target("first print, p50 in ms", median_ms(times[FIRST]), 30),
    ]
    status = report(times, targets, check=not options.no_check)
    for name in (KERNELBROKER, RAW):
        print(f"{name}: {LINES * WIDTH / 1e6 / statistics.median(times[name]):.1f} MB/s")
    return status


if __name__ == "__main__":
    sys.exit(main())
