"""Runs the comparison: all peers take turns in each measurement, so that a busy moment hits all of them."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peers.environments import Peer, UnavailableError, python_of, remove_containers, versions
from peers.measures import MEASURES
from peers.probes import PROBES
from peers.worker_client import Worker, WorkerError, WorkerLostError

BUDGET_S = 3.0
"""Of one batch: slow peers are measured fewer times."""
DEADLINE_S = 120.0
PROBE_DEADLINE_S = 260.0
MEMORY_ROUNDS = 2


@dataclass
class Result:
    """What was found for one peer. Times are seconds, memory is MiB."""

    name: str
    mode: str
    unavailable: str | None = None
    versions: list[str] = field(default_factory=list)
    values: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, str] = field(default_factory=dict)
    throughput: dict[str, dict[str, float]] = field(default_factory=dict)
    probes: dict[str, str] = field(default_factory=dict)


class Bench:
    """One peer during a run: its workers, and its result."""

    def __init__(self, peer: Peer, directory: Path) -> None:
        self.peer, self.result = peer, Result(peer.name, peer.mode)
        self._directory = directory
        self._python = Path()
        self._worker: Worker | None = None
        self._cold: Worker | None = None

    async def install(self) -> None:
        try:
            self._python = await asyncio.to_thread(python_of, self.peer, self._directory)
            self.result.versions = await asyncio.to_thread(versions, self._python)
        except UnavailableError as exc:
            self.result.unavailable = str(exc)

    async def start(self, *, cold: bool = False) -> None:
        try:
            if cold:
                self._cold = await Worker.open(
                    self.peer, self._python, self._directory, cold=self.peer.pool
                )
            else:
                await self._restart_worker(prepare=True)
        except WorkerError as exc:
            self.result.unavailable = str(exc)

    async def _restart_worker(self, *, prepare: bool) -> Worker:
        self._worker = await Worker.open(self.peer, self._python, self._directory)
        if prepare:
            try:
                await self._worker.ask({"do": "prepare"}, DEADLINE_S)
            except WorkerError:
                await self._worker.close()
                self._worker = None
                raise
        return self._worker

    async def take(self, name: str, count: int) -> None:
        """Take one batch; after a failure the measurement is not tried again."""
        if self.result.unavailable or name in self.result.errors:
            return
        cold = name == "cold" and self.peer.pool
        command = {"do": "take", "name": name, "count": count, "budget_s": BUDGET_S}
        try:
            taken = await self._ask(command, DEADLINE_S, cold=cold)
        except WorkerError as exc:
            self.result.errors[name] = str(exc)
            return
        for key, values in taken.items():
            self.result.values.setdefault(key, []).extend(values)

    async def throughput(self, count: int) -> None:
        if self.result.unavailable or f"sessions-{count}" in self.result.errors:
            return
        command = {"do": "throughput", "count": count}
        try:
            found = await self._ask(command, DEADLINE_S + 3 * count, cold=False)
            self.result.throughput[str(count)] = found
        except WorkerError as exc:
            self.result.errors[f"sessions-{count}"] = str(exc)

    async def probe(self, name: str) -> None:
        if self.result.unavailable:
            return
        try:
            command = {"do": "probe", "name": name}
            verdict = await self._ask(command, PROBE_DEADLINE_S, cold=False, prepare=False)
        except WorkerLostError as exc:
            verdict = f"lost: {exc}"
        except WorkerError as exc:
            verdict = f"lost: {exc}"
        self.result.probes[name] = verdict

    async def _ask(
        self, command: dict[str, Any], deadline_s: float, *, cold: bool, prepare: bool = True
    ) -> Any:
        worker = self._cold if cold else self._worker
        if worker is None:
            worker = await self._restart_worker(prepare=prepare)
        try:
            return await worker.ask(command, deadline_s)
        except WorkerLostError:
            if cold:
                self._cold = None
            else:
                self._worker = None
            raise

    async def stop(self) -> None:
        for worker in (self._worker, self._cold):
            if worker is not None:
                await worker.close()
        self._worker = self._cold = None
        if self.peer.needs_image == "docker":
            await asyncio.to_thread(remove_containers)


async def run(
    peers: Sequence[Peer],
    directory: Path,
    *,
    rounds: int,
    names: Sequence[str],
    sessions: Sequence[int],
    probes: bool,
) -> dict[str, Any]:
    """Measure all peers and return the results, ready for JSON."""
    benches = [Bench(peer, directory) for peer in peers]
    started, load = datetime.now(UTC), os.getloadavg()[0]
    async with AsyncExitStack() as stack:
        for bench in benches:
            say(f"{bench.peer.name}: start")
            await bench.install()
            if not bench.result.unavailable:
                stack.push_async_callback(bench.stop)
                await bench.start()
            if not bench.result.unavailable and bench.peer.pool and "cold" in names:
                await bench.start(cold=True)
            if bench.result.unavailable:
                say(f"{bench.peer.name}: {bench.result.unavailable}")
        counts = {each.command: each.count for each in MEASURES if each.command in names}
        for number in range(rounds):
            say(f"round {number + 1} of {rounds}")
            for name, count in counts.items():
                if name == "memory" and number >= MEMORY_ROUNDS:
                    continue
                for bench in turn(benches, number):
                    await bench.take(name, count)
        for size in sessions:
            for bench in benches:
                say(f"{size} sessions: {bench.peer.name}")
                await bench.throughput(size)
        for name in PROBES if probes else ():
            for bench in benches:
                say(f"probe {name}: {bench.peer.name}")
                await bench.probe(name)
    return {
        "date": f"{started:%Y-%m-%d %H:%M} UTC",
        "minutes": round((datetime.now(UTC) - started).total_seconds() / 60, 1),
        "machine": machine(),
        "load": [round(load, 1), round(os.getloadavg()[0], 1)],
        "rounds": rounds,
        "peers": [asdict(bench.result) for bench in benches],
    }


def turn(benches: list[Bench], number: int) -> list[Bench]:
    """Return the order of a round: another peer begins each time."""
    first = number % len(benches)
    return benches[first:] + benches[:first]


def machine() -> str:
    gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    python = ".".join(map(str, sys.version_info[:3]))
    return (
        f"{os.cpu_count()} cores, {gib:.0f} GiB, Linux {platform.release()}, Python {python}, "
        f"{'root' if os.geteuid() == 0 else 'an ordinary user'}"
    )


def say(text: str) -> None:
    print(f"{datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)
