"""Measures launches of the local backend: forked from a server against started, until the kernel is warm.

Both backends run in this process and take turns. A launch is warm when its kernel has run a cell, with
the imports of the default template. Processor time is that of this process, of the sandbox's processes
until it is warm, and of the fork server. Memory is the PSS of the sandboxes that live at the same time;
PSS divides a shared page among its processes, so a forked sandbox shares with the server and with the
others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from figures import Target, arguments, report
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.config_templates import TemplateSettings
from kernelbroker_server.pool.warm_sandbox import WarmSandbox, discard, launch
from kernelbroker_side import scratch_directory

KERNEL_PYTHON = Path(__file__).parents[1] / ".venv-kernel/bin/python"
SPEC = SandboxSpec(imports=TemplateSettings().imports)
LIVING = 4
"""Sandboxes that live at the same time when their memory is measured."""
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Side:
    """One way to launch, and its figures. Times are in seconds."""

    backend: LocalBackend
    launches: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    memory: float = 0.0
    server_memory: float = 0.0


async def measure(rounds: int) -> tuple[Side, Side]:
    async with _backend(True) as forking, _backend(False) as starting:
        sides = Side(forking), Side(starting)
        for side in sides:  # the first launch starts the server, and fills the page cache
            await discard(side.backend, *_parts(await launch(side.backend, "first", SPEC, 60)))
        for number in range(rounds):
            for side in sides:
                warm = await _timed_launch(side, f"s{number}")
                await discard(side.backend, *_parts(warm))
        for side in sides:
            await _measure_memory(side)
    return sides


async def _timed_launch(side: Side, name: str) -> WarmSandbox:
    before, begin = _processor_of_others(side), perf_counter()
    ours = time.process_time()
    warm = await launch(side.backend, name, SPEC, 60)
    side.launches.append(perf_counter() - begin)
    family = procfs.family(procfs.processes(), *warm.sandbox.roots)  # type: ignore[attr-defined]
    spent = sum(map(_processor, family)) + time.process_time() - ours
    side.processor.append(spent + _processor_of_others(side) - before)
    return warm


async def _measure_memory(side: Side) -> None:
    warm = [await launch(side.backend, f"m{number}", SPEC, 60) for number in range(LIVING)]
    roots = [pid for each in warm for pid in each.sandbox.roots]  # type: ignore[attr-defined]
    side.memory = procfs.memory_of(*roots) / LIVING / 1024**2
    if servers := _servers(side):  # their families include the gateways
        together = procfs.memory_of(*roots, *servers) / 1024**2
        side.server_memory = together - LIVING * side.memory
    for each in warm:
        await discard(side.backend, *_parts(each))


def _servers(side: Side) -> list[int]:
    """The pids of the fork servers' bubblewraps, whose children are the servers."""
    servers = side.backend.fork_servers
    return [] if servers is None else servers.pids


def _processor_of_others(side: Side) -> float:
    table = procfs.processes()
    children = [pid for pid, entry in table.items() if entry.parent in _servers(side)]
    return sum(map(_processor, children))


def _processor(pid: int) -> float:
    """Seconds of processor that a process and its dead children have used."""
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0.0


def _parts(warm: WarmSandbox) -> tuple:  # type: ignore[type-arg]
    return warm.sandbox, warm.gateway


@contextlib.asynccontextmanager
async def _backend(fork_server: bool) -> AsyncIterator[LocalBackend]:
    with scratch_directory() as directory:
        backend = LocalBackend(
            kernel_python=KERNEL_PYTHON,
            data_dir=directory / "data",
            run_dir=directory / "run",
            require_isolation=True,
            fork_server=fork_server,
            max_forks=10_000,
        )
        await backend.start()
        try:
            yield backend
        finally:
            await backend.stop()


def main() -> int:
    options = arguments(__doc__ or "", default_rounds=20)
    forked, started = asyncio.run(measure(options.rounds))
    times = {"warm, forked": forked.launches, "warm, started": started.launches}
    times |= {"processor, forked": forked.processor, "processor, started": started.processor}
    ratio = statistics.median(
        ours / theirs for ours, theirs in zip(forked.launches, started.launches, strict=True)
    )
    spent = statistics.median(forked.processor) / statistics.median(started.processor)
    targets = [
        Target("launch, forked / started, paired", ratio, 0.5),
        Target("processor, forked / started", spent, 0.5),
        Target("memory, forked / started", forked.memory / started.memory, 0.7),
    ]
    status = report(times, targets, check=not options.no_check)
    print(
        f"\nmemory of a warm sandbox, {LIVING} at a time, PSS: {forked.memory:.0f} MiB forked, "
        f"{started.memory:.0f} MiB started; the fork server itself {forked.server_memory:.0f} MiB"
    )
    return status


if __name__ == "__main__":
    sys.exit(main())
