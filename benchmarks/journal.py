"""Measures what the durable event store costs: lines a second and the first byte, with it and in memory.

Two brokers take turns, one with a state directory and one without, in one run. "Flushed" lines are an event
each, so that each is stored by itself; other lines come in large events.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from time import perf_counter

import kernelbroker
from figures import Target, arguments, median_ms, report
from kernelbroker.protocol import events
from kernelbroker_side import running_broker

DURABLE, MEMORY = "durable", "memory"
WIDTH = 100
CELLS = {"lines": (100_000, ""), "flushed lines": (3_000, ", flush=True")}
"""The number of lines, and the argument of `print`."""
ROUND_TRIPS = 25
FIRST_BYTES = 10


async def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """Return the seconds of each measurement by store. Neighbouring values were measured in turn."""
    times: dict[str, dict[str, list[float]]] = {}
    async with AsyncExitStack() as stack:
        sessions = {}
        for store in (DURABLE, MEMORY):
            settings = {"KERNELBROKER_LIMITS__OUTPUT": "64MiB"}
            if store == MEMORY:
                settings["KERNELBROKER_STATE_DIR"] = ""
            broker = await stack.enter_async_context(running_broker(warm=1, **settings))
            sessions[store] = await stack.enter_async_context(broker.session())
        for number in range(rounds + 1):
            order = (DURABLE, MEMORY) if number % 2 else (MEMORY, DURABLE)
            for name, seconds in MEASUREMENTS.items():
                for store in order:
                    value = await seconds(sessions[store])
                    if number:
                        times.setdefault(name, {}).setdefault(store, []).append(value)
    return times


def lines(count: int, argument: str) -> Callable[[kernelbroker.Session], Awaitable[float]]:
    code = f"for _ in range({count}): print('x' * {WIDTH - 1}{argument})"

    async def seconds(session: kernelbroker.Session) -> float:
        begin = perf_counter()
        result = await session.run(code)
        taken = perf_counter() - begin
        if result.stdout != ("x" * (WIDTH - 1) + "\n") * count:
            raise AssertionError(f"{len(result.stdout):,} of {count * WIDTH:,} characters came")
        return taken

    return seconds


async def first_byte(session: kernelbroker.Session) -> float:
    values = []
    for _ in range(FIRST_BYTES):
        begin = perf_counter()
        async with aclosing(session.stream("print('now', flush=True)")) as stream:
            async for event in stream:
                if isinstance(event, events.Stdout):
                    values.append(perf_counter() - begin)
    return statistics.median(values)


async def round_trip(session: kernelbroker.Session) -> float:
    values = []
    for _ in range(ROUND_TRIPS):
        begin = perf_counter()
        (await session.run("1")).raise_for_error()
        values.append(perf_counter() - begin)
    return statistics.median(values)


MEASUREMENTS = {
    **{name: lines(*cell) for name, cell in CELLS.items()},
    "first byte": first_byte,
    "round trip": round_trip,
}


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=20)
    measured = asyncio.run(measure(options.rounds))

    def ratio(name: str) -> float:
        """How much longer it takes in memory than with the durable store."""
        by_store = measured[name]
        pairs = zip(by_store[MEMORY], by_store[DURABLE], strict=True)
        return statistics.median(memory / durable for memory, durable in pairs)

    first = measured["first byte"]
    later = median_ms([a - b for a, b in zip(first[DURABLE], first[MEMORY], strict=True)])
    targets = [
        *(
            Target(f"{name} a second, durable / memory", ratio(name), 0.9, at_least=True)
            for name in CELLS
        ),
        Target("first byte, ms later", later, 5),
        Target("round trip, durable / memory", 1 / ratio("round trip"), 1.05),
    ]
    times = {
        f"{name}, {store}": values
        for name, by_store in measured.items()
        for store, values in by_store.items()
    }
    status = report(times, targets, check=not options.no_check)
    for name, (count, _) in CELLS.items():
        for store, values in measured[name].items():
            print(f"{name}, {store}: {count / statistics.median(values):,.0f} a second")
    return status


if __name__ == "__main__":
    sys.exit(main())
