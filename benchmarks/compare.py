"""Compares this checkout with another one: round trips of `run("1")`, processor time, leases, launches.

Each side is a broker with a client of the same checkout; both use this checkout's environments. The sides
take turns in small batches and swap their order each time. On a busy machine the medians of the ratios of
neighbouring batches vary less than the ratios of medians, and processor times vary least.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from figures import Target, median_ms, report
from kernelbroker_side import ROOT, running

THIS, OTHER = "this", "other"
BATCH = 25
WARM_UP = 100
READY_TIMEOUT_S = 120.0


class Side:
    """One checkout's broker and client."""

    def __init__(self, process: Process) -> None:
        self._process = process

    async def ready(self) -> None:
        async with asyncio.timeout(READY_TIMEOUT_S):
            if await self._line() != b"ready\n":
                raise RuntimeError("a side did not start")

    async def measure(self, name: str, count: int = 1) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{name} {count}\n".encode())
        answer: dict[str, Any] = json.loads(await self._line())
        return answer

    async def end(self) -> None:
        """End the worker, which ends its broker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()

    async def _line(self) -> bytes:
        assert self._process.stdout is not None
        return await self._process.stdout.readline()


async def open_side(stack: AsyncExitStack, checkout: Path) -> Side:
    packages = (str(checkout / name) for name in ("broker", "sdk", "kernel_image"))
    environ = {**os.environ, "PYTHONPATH": ":".join(packages)}
    worker = str(Path(__file__).with_name("compare_worker.py"))
    side = Side(await stack.enter_async_context(running(worker, env=environ, stdin=PIPE)))
    stack.push_async_callback(side.end)
    await side.ready()
    return side


Batches = dict[str, list[dict[str, Any]]]


async def measure(other: Path, rounds: int, leases: int) -> tuple[Batches, Batches]:
    async with AsyncExitStack() as stack:
        sides = {
            THIS: await open_side(stack, ROOT),
            OTHER: await open_side(stack, other),
        }

        async def alternate(name: str, rounds: int, count: int) -> Batches:
            batches: Batches = {THIS: [], OTHER: []}
            for number in range(rounds):
                for side in (THIS, OTHER) if number % 2 else (OTHER, THIS):
                    batches[side].append(await sides[side].measure(name, count))
            return batches

        await alternate("cells", 2, WARM_UP // 2)
        cells = await alternate("cells", rounds, BATCH)
        return cells, await alternate("lease", leases, 1)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, metavar="DIR", help="the checkout to compare with")
    parser.add_argument("--rounds", type=int, default=60, help=f"batches of {BATCH} cells")
    parser.add_argument("--leases", type=int, default=10)
    parser.add_argument("--no-check", action="store_true", help="only report; exit with 0")
    options = parser.parse_args()
    cells, leases = asyncio.run(measure(options.other.resolve(), options.rounds, options.leases))

    times: dict[str, list[float]] = {}
    for side in (THIS, OTHER):
        times[f"round trip, {side}"] = [each for batch in cells[side] for each in batch["cells"]]
    for name in leases[THIS][0] if options.leases else ():
        for side in (THIS, OTHER):
            times[f"{name}, {side}"] = [batch[name] for batch in leases[side]]

    trips = [
        statistics.median(this["cells"]) / statistics.median(other["cells"])
        for this, other in zip(cells[THIS], cells[OTHER], strict=True)
    ]
    cpu = {side: _processor_ms(cells[side]) for side in (THIS, OTHER)}
    medians = {side: median_ms(times[f"round trip, {side}"]) for side in (THIS, OTHER)}
    targets = [
        Target("round trip, ratio of medians", medians[THIS] / medians[OTHER], 1.05),
        Target("round trip, median of paired ratios", statistics.median(trips), 1.05),
        Target("processor time of a cell, ratio", cpu[THIS]["all"] / cpu[OTHER]["all"], 1.05),
    ]
    status = report(times, targets, check=not options.no_check)
    print(f"\n{'processor ms a cell':<36}{THIS:>10}{OTHER:>10}{'ratio':>10}{'paired':>10}")
    for name, ms in cpu[THIS].items():
        if not ms or not cpu[OTHER][name]:
            continue  # a sandbox is forked or started
        ratios = [
            _of(a, name) / _of(b, name) for a, b in zip(cells[THIS], cells[OTHER], strict=True)
        ]
        row = (ms, cpu[OTHER][name], ms / cpu[OTHER][name], statistics.median(ratios))
        print(f"{name:<36}" + "".join(f"{figure:>10.3f}" for figure in row))
    return status


def _processor_ms(batches: list[dict[str, Any]]) -> dict[str, float]:
    """Median milliseconds of processor time that one cell takes, by process."""
    names = [*batches[0]["cpu"], "all"]
    return {
        name: statistics.median(_of(batch, name) / len(batch["cells"]) * 1000 for batch in batches)
        for name in names
    }


def _of(batch: dict[str, Any], name: str) -> float:
    seconds: dict[str, float] = batch["cpu"]
    return sum(seconds.values()) if name == "all" else seconds[name]


if __name__ == "__main__":
    sys.exit(main())
