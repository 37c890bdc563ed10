"""Opens many sessions and compares the broker's memory, descriptors, threads, processes and directories.

Two clients open one session after the other, run a cell that prints and writes a file, and close it; its
files are not kept. What there is of the broker is counted after a tenth of the sessions, when all caches
are filled, and at the end; each time when the pool, which grows with the load, is as small as at first.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

import kernelbroker
from kernelbroker_server.backends import procfs
from kernelbroker_side import running_broker

WARM, CLIENTS = 2, 2
CELL = "print(1); open('file', 'w').write('x')"
QUIET_S = 300.0
"""A pool that has grown gives up one sandbox in ten seconds."""
ALLOWED = 2
"""More descriptors, threads, processes or directories than that would be a leak."""
KIB_PER_SESSION = 20.0
"""More would fill a gibibyte in 50,000 sessions."""


def broker_pid() -> int:
    """Return the pid of the broker that this process started."""
    (pid,) = (
        Path(f"/proc/self/task/{Path('/proc/thread-self').readlink().name}/children")
        .read_text()
        .split()
    )
    return int(pid)


def state(pid: int) -> dict[str, int]:
    """Return what there is of a broker: KiB of resident memory, and numbers."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {
        "memory, KiB": int(status["VmRSS"].split()[0]),
        "descriptors": descriptors,
        "threads": int(status["Threads"]),
        "processes": len(procfs.family(procfs.processes(), pid)),
        "directories": sum(1 for _, names, _ in os.walk(data_dir(pid)) for _ in names),
    }


def data_dir(pid: int) -> str:
    """Return the directory of the broker's sandboxes."""
    variables = Path(f"/proc/{pid}/environ").read_text().split("\0")
    name = "KERNELBROKER_LOCAL__DATA_DIR="
    return next(each for each in variables if each.startswith(name)).removeprefix(name)


async def open_sessions(broker: kernelbroker.Broker, count: int) -> None:
    for _ in range(count):
        async with broker.session(workspace_retention=0) as session:
            (await session.run(CELL)).raise_for_error()


async def until_quiet(broker: kernelbroker.Broker) -> None:
    """Wait until the pool holds as many sandboxes as at first, all of them free."""
    async with asyncio.timeout(QUIET_S):
        while True:
            status = await broker.pool_status()
            if status["total_containers"] == status["idle_containers"] == WARM:
                return
            await asyncio.sleep(1)


async def measure(sessions: int) -> tuple[dict[str, int], dict[str, int]]:
    async with running_broker(warm=WARM, KERNELBROKER_POOL__MAX_SIZE="16") as broker:
        found = []
        for part in (sessions // 10, sessions - sessions // 10):
            await asyncio.gather(*(open_sessions(broker, part // CLIENTS) for _ in range(CLIENTS)))
            await until_quiet(broker)
            found.append(state(broker_pid()))
        return found[0], found[1]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=5000)
    sessions = parser.parse_args().sessions
    before, after = asyncio.run(measure(sessions))
    for name, value in after.items():
        print(f"{name:<16}{before[name]:>10}{value:>10}")
    grown = (after["memory, KiB"] - before["memory, KiB"]) / (sessions * 0.9)
    print(f"{grown:.1f} KiB a session, at most {KIB_PER_SESSION:g}")
    more = {name: after[name] - before[name] for name in after if name != "memory, KiB"}
    return int(grown > KIB_PER_SESSION or max(more.values()) > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())
