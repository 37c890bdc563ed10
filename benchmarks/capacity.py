"""Measures what the broker's process spends on sessions and cells: what bounds the number of both on
one machine.

Sandboxes are those of the `local` backend, and share the machine with the broker. So the rates say
little about a broker whose sandboxes are elsewhere, and processor times and memory of the broker's own
process say much.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from time import perf_counter

import kernelbroker
from compare_worker import processor_times
from figures import Target, arguments, report
from kernelbroker_server.backends import procfs
from kernelbroker_side import running_broker, until_warm

SESSIONS, CELLS, _IDLE_S = 20, 40, 5
_MODULE = b"kernelbroker_server"


async def measure(rounds: int) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Return the seconds of each cell, and the figures of the broker."""
    times: list[float] = []
    figures: dict[str, float] = {}
    async with (
        running_broker(warm=SESSIONS, KERNELBROKER_POOL__MAX_SIZE=str(SESSIONS)) as broker,
        AsyncExitStack() as stack,
    ):
        async with broker.session() as session:  # what only the first one takes
            await session.run("1")
        await until_warm(broker, SESSIONS)
        memory = _broker_memory()
        before = processor_times()["broker"]
        sessions = [await stack.enter_async_context(broker.session()) for _ in range(SESSIONS)]
        figures["a warm session opened, in ms"] = _each_ms(before)
        await asyncio.gather(*(session.run("1") for session in sessions))
        figures["memory of an open session, in KiB"] = (_broker_memory() - memory) / SESSIONS

        async def run(session: kernelbroker.Session) -> None:
            for _ in range(rounds):
                begin = perf_counter()
                (await session.run("1")).raise_for_error()
                times.append(perf_counter() - begin)

        before, begin = processor_times()["broker"], perf_counter()
        await asyncio.gather(*map(run, sessions))
        figures["a cell, in ms"] = _each_ms(before, len(times))
        figures["cells a second, of all processes"] = len(times) / (perf_counter() - begin)
        before = processor_times()["broker"]
        await asyncio.sleep(_IDLE_S)
        figures["an idle session, in ms a second"] = _each_ms(before) / _IDLE_S
        before = processor_times()["broker"]
        await stack.aclose()
        await until_warm(broker, SESSIONS)
        figures["a session closed and its sandbox replaced, in ms"] = _each_ms(before)
    return {"cell, of 20 sessions at once": times}, figures


def _each_ms(before: float, count: int = SESSIONS) -> float:
    """Milliseconds of the broker's processor since then, for each."""
    return 1000 * (processor_times()["broker"] - before) / count


def _broker_memory() -> float:
    """Resident KiB of the broker."""
    for pid in procfs.family(procfs.processes(), os.getpid()):
        if _MODULE in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"):
            found = re.search(r"VmRSS:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
            assert found is not None
            return float(found[1])
    raise RuntimeError("there is no broker")


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=CELLS)
    times, figures = asyncio.run(measure(options.rounds))
    targets = [Target("cell, processor time of the broker in ms", figures["a cell, in ms"], 3)]
    status = report(times, targets, check=not options.no_check)
    print("\nThe broker's process:")
    for name, value in figures.items():
        print(f"{name:<56}{value:>9.2f}")
    return status


if __name__ == "__main__":
    sys.exit(main())
