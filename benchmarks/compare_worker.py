"""One side of `compare.py`: a broker with its client, which runs the requested measurements.

Each line of standard input is the name of a measurement and a count; the answer is a line of JSON. The
packages are those of the checkout that PYTHONPATH names; only what all versions have is used of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from time import perf_counter

import kernelbroker
from kernelbroker_server.backends import procfs
from kernelbroker_side import running_broker, until_warm

MODULES = {
    "broker": "kernelbroker_server",
    "gateway": "kernelbroker_kernel",
    "kernel": "kernelbroker_kernel.kernel",
    "gateway and kernel, forked": "kernelbroker_kernel.fork_server",
}


async def serve() -> None:
    async with running_broker() as broker, broker.session() as session:
        await until_warm(broker, 1)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            name, count = line.split()
            answer: Mapping[str, object] = (
                await cells(session, int(count)) if name == "cells" else await lease(broker)
            )
            print(json.dumps(answer), flush=True)


async def cells(session: kernelbroker.Session, count: int) -> dict[str, object]:
    """Measure the round trips of cells, and the processor time of all processes during these."""
    times = []
    before = processor_times()
    for _ in range(count):
        begin = perf_counter()
        (await session.run("1")).raise_for_error()
        times.append(perf_counter() - begin)
    after = processor_times()
    return {"cells": times, "cpu": {name: after[name] - before[name] for name in after}}


async def lease(broker: kernelbroker.Broker) -> dict[str, float]:
    """Measure a lease, the first cell after it, and the launch of the next sandbox."""
    await until_warm(broker, 1)
    before = processor_times()
    begin = perf_counter()
    async with broker.session() as session:
        leased = perf_counter()
        await until_warm(broker, 1)
        launched = perf_counter()
        after = processor_times()
        begin_cell = perf_counter()
        (await session.run("1")).raise_for_error()
        ran = perf_counter()
    return {
        "lease": leased - begin,
        "launch": launched - leased,
        "launch, processor": sum(
            after[name] - before[name] for name in after if name not in ("client", "broker")
        ),
        "first cell": ran - begin_cell,
    }


def processor_times() -> dict[str, float]:
    """Seconds of processor time that the client and the processes of its broker have used."""
    seconds = dict.fromkeys(("client", *MODULES), 0.0)
    seconds["client"] = time.process_time()
    for pid in procfs.family(procfs.processes(), os.getpid()) - {os.getpid()}:
        with contextlib.suppress(OSError):
            argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            for name, module in MODULES.items():
                if "python" in argv[0] and module in argv:
                    # The clock of another process, as clock_getcpuclockid(3) names it.
                    seconds[name] += time.clock_gettime(~pid << 3 | 2)
    return seconds


if __name__ == "__main__":
    asyncio.run(serve())
