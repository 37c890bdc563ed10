"""The pool of either backend: a warm lease, how fast leased sandboxes are made up for, their memory.

A lease is the whole `async with broker.session()`, as in lease.py. The refill is timed from the moment
all warm sandboxes are leased until as many are warm again: what a pool makes in a minute that launches
two at a time. Memory is the PSS of a warm sandbox's processes, in which a page that several of them
share counts in parts; to read it the benchmark has to be root, or the owner of the sandboxes.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from figures import Target, arguments, median_ms, report
from ours import our_broker, scratch_directory, until_warm

WARM = 3
REFILLS = 3
BACKENDS = ("local", "docker")
IMAGE = os.environ.get("KERNELBROKER_TEST_IMAGE", "kernelbroker-kernel")


@dataclass
class Figures:
    leases_s: list[float] = field(default_factory=list)
    refills_s: list[float] = field(default_factory=list)
    sandbox_mib: float = 0.0

    @property
    def per_minute(self) -> float:
        return 60 * WARM / statistics.median(self.refills_s)


async def measure(backend: str, rounds: int) -> Figures:
    figures = Figures()
    with scratch_directory() as directory:
        places = {
            f"KERNELBROKER_{kind}__{key}": str(directory)
            for kind in ("LOCAL", "DOCKER")
            for key in ("DATA_DIR", "RUN_DIR")
        }
        async with our_broker(
            warm=WARM,
            **places,
            KERNELBROKER_BACKEND=backend,
            KERNELBROKER_DOCKER__IMAGE=IMAGE,
            KERNELBROKER_POOL__MAX_SIZE=str(3 * WARM),  # those being removed take room as well
            KERNELBROKER_POOL__SCALE_UP_THRESHOLD="1000",  # its size is to stay as it is
        ) as broker:
            figures.sandbox_mib = memory_mib(directory) / WARM
            for round_number in range(rounds + 1):
                await until_warm(broker, WARM)
                begin = perf_counter()
                async with broker.session():
                    end = perf_counter()
                if round_number:  # the first one also imports and compiles what all of them need
                    figures.leases_s.append(end - begin)
            for _ in range(REFILLS):
                await until_warm(broker, WARM)
                async with AsyncExitStack() as leased:
                    for _ in range(WARM):
                        await leased.enter_async_context(broker.session())
                    begin = perf_counter()
                    await until_warm(broker, WARM)
                    figures.refills_s.append(perf_counter() - begin)
    return figures


def memory_mib(data_dir: Path) -> float:
    """PSS of all processes in sandboxes that have their workspaces below a directory."""
    workspaces = f"{data_dir.name}/".encode()
    kib = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if workspaces in (process / "mountinfo").read_bytes():
                rollup = (process / "smaps_rollup").read_text().splitlines()
                kib += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        except OSError:  # it has ended, or is a thread of the system's
            continue
    if not kib:
        raise RuntimeError("no process of a sandbox can be read; run the benchmark as root")
    return kib / 1024


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=30)
    local, docker = (asyncio.run(measure(backend, options.rounds)) for backend in BACKENDS)
    times = {
        "lease, local": local.leases_s,
        "lease, docker": docker.leases_s,
        f"refill of {WARM}, local": local.refills_s,
        f"refill of {WARM}, docker": docker.refills_s,
    }
    lease_ms, rival_ms = median_ms(docker.leases_s), median_ms(local.leases_s)
    targets = [
        Target("lease on docker, p50 in ms", lease_ms, 10),
        Target("lease on local, p50 in ms", rival_ms, 10),
    ]
    status = report(times, targets, check=not options.no_check)
    rows = {
        "lease, p50 in ms": (rival_ms, lease_ms),
        "sandboxes made in a minute": (local.per_minute, docker.per_minute),
        "memory of a warm sandbox, PSS in MiB": (local.sandbox_mib, docker.sandbox_mib),
    }
    print(f"\n{'':<40}{'local':>10}{'docker':>10}{'docker / local':>18}")
    for name, (ours, theirs) in rows.items():
        print(f"{name:<40}{ours:>10.2f}{theirs:>10.2f}{theirs / ours:>18.2f}")
    return status


if __name__ == "__main__":
    sys.exit(main())
