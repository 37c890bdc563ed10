"""Measures the pool of both backends: a warm lease, the rate of new sandboxes, and their memory.

A lease is the whole `async with broker.session()`, as in lease.py. The refill is the time from the
moment all warm sandboxes are leased until the same number is warm again, with two launches at a
time. Memory is the PSS of the processes of a warm sandbox; PSS divides a shared page among its
processes. To read it the benchmark must be root or the owner of the sandboxes.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
import subprocess
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from figures import Target, arguments, median_ms, report
from kernelbroker_side import running_broker, scratch_directory, until_warm

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
        async with running_broker(
            warm=WARM,
            **places,
            KERNELBROKER_BACKEND=backend,
            KERNELBROKER_DOCKER__IMAGE=IMAGE,
            KERNELBROKER_POOL__MAX_SIZE=str(3 * WARM),  # includes sandboxes that are being removed
            KERNELBROKER_POOL__SCALE_UP_THRESHOLD="1000",  # keeps the size of the pool constant
        ) as broker:
            figures.sandbox_mib = memory_mib(directory) / WARM
            for round_number in range(rounds + 1):
                await until_warm(broker, WARM)
                begin = perf_counter()
                async with broker.session():
                    end = perf_counter()
                if round_number:  # the first one also imports and compiles common modules
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
    """Return the PSS of all processes of sandboxes whose workspaces are below a directory."""
    workspaces = f"{data_dir.name}/".encode()
    kib = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if workspaces in (process / "mountinfo").read_bytes():
                rollup = (process / "smaps_rollup").read_text().splitlines()
                kib += next(int(line.split()[1]) for line in rollup if line.startswith("Pss:"))
        except OSError:  # the process has ended, or is a kernel thread
            continue
    if not kib:
        raise RuntimeError("no process of a sandbox can be read; run the benchmark as root")
    return kib / 1024


def missing_engine() -> str | None:
    """Return what the docker backend lacks on this machine, and what to do about it, or None."""
    if shutil.which("docker") is None:
        return "there is no `docker` command. Install Docker or Podman's `docker`."
    for argv, remedy in (
        (["docker", "version"], "no engine answers. Start it, or set DOCKER_HOST."),
        (["docker", "image", "inspect", IMAGE], f"the image {IMAGE} is missing. Run `make image`."),
    ):
        if subprocess.run(argv, capture_output=True, check=False).returncode:
            return remedy
    return None


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=30)
    if missing := missing_engine():
        print(f"pool.py is left out: {missing}")
        return 0
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
