"""Opens many sessions one after the other and compares the broker's memory, descriptors and threads.

The state is read after a tenth of the sessions, when all caches are filled, and at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from kernelbroker_side import running_broker, until_warm

WARM = 2
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
    """Return the resident memory in KiB, the open descriptors and the threads of a process."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    descriptors = len(list(Path(f"/proc/{pid}/fd").iterdir()))
    return {
        "memory, KiB": int(status["VmRSS"].split()[0]),
        "descriptors": descriptors,
        "threads": int(status["Threads"]),
    }


async def measure(sessions: int) -> tuple[dict[str, int], dict[str, int]]:
    async with running_broker(warm=WARM) as broker:
        before: dict[str, int] = {}
        for number in range(sessions):
            async with broker.session() as session:
                (await session.run("print(1)")).raise_for_error()
            if number == sessions // 10:
                await until_warm(broker, WARM)
                before = state(broker_pid())
        await until_warm(broker, WARM)
        return before, state(broker_pid())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=2000)
    sessions = parser.parse_args().sessions
    before, after = asyncio.run(measure(sessions))
    for name, value in after.items():
        print(f"{name:<16}{before[name]:>10}{value:>10}")
    grown = (after["memory, KiB"] - before["memory, KiB"]) / (sessions * 0.9)
    print(f"{grown:.1f} KiB a session, at most {KIB_PER_SESSION:g}")
    return int(grown > KIB_PER_SESSION or after["descriptors"] > before["descriptors"] + 2)


if __name__ == "__main__":
    sys.exit(main())
