"""Rounds of faults, for a time, by a seed.

    python -m tests.chaos.rounds --seconds 600 --seed 1 --backend local

In each round several clients run cells while things break. Then all is calm, and what they saw is judged.
The figures are printed at the end. Which faults a round has follows from the seed; when exactly they hit
depends on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

import kernelbroker
from kernelbroker import execution_handle, websocket

from tests.chaos.cutting_proxy import CuttingProxy
from tests.chaos.victim import TOKEN, Victim
from tests.chaos.workload import RAN, Verdict, Worker
from tests.support.engines import OwnDocker
from tests.support.postgres import postgres_server
from tests.support.requires import IMAGE

KINDS = ("local", "docker", "own-docker", "cluster")
WORKERS = 6
CALM_AFTER_S = 6.0
"""Connections are no longer cut after this time of a round."""
_RETRY_DELAYS = (0.0, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, *[2.0] * 10)
"""Of clients. Impatient ones meet more faults in the same time."""
_LOG_CHARS = 30_000
"""Of the log of a broker that did not end a round."""
ROUND_S = 180.0
"""A cell that has no result after this time has none."""


@dataclass
class Report:
    seed: int
    backend: str
    rounds: int = 0
    cells: int = 0
    seconds: float = 0.0
    faults: Counter[str] = field(default_factory=Counter)
    told: Counter[str] = field(default_factory=Counter)
    """Errors that clients got in place of events."""
    verdict: Verdict = field(default_factory=Verdict)

    def __str__(self) -> str:
        verdict = self.verdict

        def listed(counts: Counter[str]) -> str:
            return (
                ", ".join(f"{name} {count:,}" for name, count in sorted(counts.items())) or "none"
            )

        return (
            f"chaos on {self.backend}, seed {self.seed}, {self.seconds:.0f} s\n"
            f"  rounds {self.rounds:,}, cells {self.cells:,}, events {verdict.events:,}\n"
            f"  faults {self.faults.total():,}: {listed(self.faults)}\n"
            f"  results: {listed(verdict.outcomes)}\n"
            f"  errors told to clients: {listed(self.told)}\n"
            f"  lost {verdict.lost}, doubled {verdict.doubled}"
        )


class Chaos:
    """
    Attributes:
        victims: the brokers.
        victim: the one that the next fault hits.
        fault: the present one.
    """

    def __init__(
        self, victims: list[Victim], proxy: CuttingProxy, rng: random.Random, report: Report
    ):
        self.victims = victims
        self.victim = victims[0]
        self.fault = ""
        self.proxy = proxy
        self.rng = rng
        self.report = report
        self.workers = [
            Worker(number, self.connect, random.Random(rng.random()), report.told)
            for number in range(WORKERS)
        ]

    def connect(self) -> kernelbroker.Broker:
        return kernelbroker.connect(self.proxy.url, TOKEN, open_timeout=120)

    def aim(self) -> None:
        """Clients reach the brokers that run, each in turn."""
        self.proxy.targets = [victim.port for victim in self.victims]

    async def round(self) -> None:
        """One round. Raises TimeoutError if a cell has no result."""
        begun = [len(worker.cells) for worker in self.workers]
        self.proxy.cuts = self.rng.choice([0.0, 0.8, 0.95])
        self.proxy.reach = self.rng.choice([1_000, 3_000, 10_000])
        self.proxy.pauses = self.rng.choice([0.0, 0.0, 0.05])
        self.victim = self.rng.choice(self.victims)
        faults = self.faults()
        fault = self.rng.choices(list(faults), [weight for weight, _ in faults.values()])[0]
        self.fault = fault
        # An event that is longer than any connection lasts would never arrive.
        calming = asyncio.get_running_loop().call_later(CALM_AFTER_S, self.proxy.calm)
        try:
            async with asyncio.timeout(ROUND_S), asyncio.TaskGroup() as group:
                for worker in self.workers:
                    group.create_task(worker.run(self.rng.randint(1, 4)))
                group.create_task(self._happen(fault, faults[fault][1]))
        finally:
            calming.cancel()
            self.proxy.calm()
        for worker, first in zip(self.workers, begun, strict=True):
            await self._judge(worker, first)
        self.report.rounds += 1

    def unfinished(self) -> str:
        """The cells that have no result, and what happened in this round."""
        cells = [worker.cells[-1] for worker in self.workers if worker.cells[-1].result is None]
        return f"the fault was: {self.fault}\n" + "\n".join(
            f"{each.execution_id} of {each.session_id}: accepted {each.accepted}, "
            f"{len(each.seen)} events, refused {each.refused}"
            for each in cells
        )

    async def _happen(self, name: str, work: Callable[[], Awaitable[bool]]) -> None:
        await asyncio.sleep(self.rng.uniform(0.0, 0.7))
        if await work():
            self.report.faults[name] += 1

    async def _judge(self, worker: Worker, first: int) -> None:
        async with self.connect() as broker:
            for cell in worker.cells[first:]:
                self.report.cells += 1
                again = []
                if cell.result is not None:
                    handle = await broker.attach_execution(cell.execution_id)
                    again = [event async for event in handle.events()]
                self.report.verdict.add(cell, again)

    async def count_runs(self) -> None:
        """Judge how often each cell ran, at the very end."""
        for worker in self.workers:
            await worker.drop()
        async with self.connect() as broker:
            for info in await broker.sessions():  # their clients could not close them
                await broker.close_session(info.session_id)
            for worker in self.workers:
                async with broker.session(workspace=worker.workspace) as session:
                    if await session.files.exists(RAN):
                        names = (await session.files.read_text(RAN)).split()
                        self.report.verdict.ran(names)

    # Faults: how likely each is, and what it does. It returns whether it happened.

    def faults(self) -> dict[str, tuple[float, Callable[[], Awaitable[bool]]]]:
        found: dict[str, tuple[float, Callable[[], Awaitable[bool]]]] = {
            "no further fault": (6, self._nothing),
            "broker killed": (1, self._kill_broker),
            "broker stopped": (0.5, self._stop_broker),
            "broker frozen": (2, self._freeze),
            "sandbox process killed": (2, self._kill_process),
            "disk full": (1, self._fill_disk),
            "clock jumped": (2, self._jump),
        }
        if len(self.victims) == 1:
            found["broker taken over"] = (0.5, self._take_over)
        if self.victim.kind == "docker":
            found["container killed"] = (2, self._kill_container)
        if self.victim.engine is not None:
            found["engine restarted"] = (4, self._restart_engine)
        return found

    async def _nothing(self) -> bool:
        return False

    async def _kill_broker(self) -> bool:
        await asyncio.to_thread(self.victim.kill)
        await self._start_broker()
        return True

    async def _stop_broker(self) -> bool:
        await asyncio.to_thread(self.victim.stop)
        await self._start_broker()
        return True

    async def _take_over(self) -> bool:
        await asyncio.to_thread(self.victim.take_over)
        return True

    async def _start_broker(self) -> None:
        await asyncio.to_thread(self.victim.start)
        self.aim()

    async def _freeze(self) -> bool:
        self.victim.freeze()
        try:
            await asyncio.sleep(self.rng.uniform(0.05, 1.0))
        finally:
            self.victim.thaw()
        return True

    async def _kill_process(self) -> bool:
        return await asyncio.to_thread(self.victim.kill_process, self.rng)

    async def _kill_container(self) -> bool:
        return await asyncio.to_thread(self.victim.kill_container, self.rng)

    async def _restart_engine(self) -> bool:
        await asyncio.to_thread(self.victim.restart_engine)
        return True

    async def _fill_disk(self) -> bool:
        self.victim.fill_disk()
        try:
            await asyncio.sleep(self.rng.uniform(0.1, 0.6))
        finally:
            self.victim.empty_disk()
        return True

    async def _jump(self) -> bool:
        self.victim.jump(self.rng.choice([-1, 1]) * self.rng.uniform(1, 6 * 3600))
        return True


async def run(
    seconds: float,
    seed: int,
    backend: str,
    say: Callable[[str], None] = lambda _: None,
    max_faults: float = float("inf"),
) -> Report:
    """Run rounds until the time is over.

    Args:
        backend: `local`, `docker`, or `own-docker`: with an engine that is restarted, too; or `cluster`:
            three brokers on one PostgreSQL.
    """
    rng, report = random.Random(seed), Report(seed, backend)
    with (
        contextlib.ExitStack() as cleanup,
        tempfile.TemporaryDirectory(prefix="kb-") as directory,
        mock.patch.object(execution_handle, "_FIRST_DELAY", 0.01),
        mock.patch.object(websocket, "RETRY_DELAYS", _RETRY_DELAYS),
    ):
        victims = await asyncio.to_thread(_victims, Path(directory), backend, cleanup)
        try:
            for victim in victims:
                await asyncio.to_thread(victim.start)
            async with CuttingProxy(rng, report.faults).serving() as proxy:
                chaos = Chaos(victims, proxy, rng, report)
                chaos.aim()
                begun = time.monotonic()
                while (
                    time.monotonic() < begun + seconds and report.faults.total() < max_faults
                ) and not report.verdict.wrong:
                    await chaos.round()
                    report.seconds = time.monotonic() - begun
                    if report.rounds % 50 == 0:
                        say(str(report))
                await chaos.count_runs()
            for victim in victims:  # which leave no sandbox
                await asyncio.to_thread(victim.stop, signal.SIGINT)
        except BaseException as exc:
            if isinstance(exc, TimeoutError):
                say(chaos.unfinished())
                await asyncio.to_thread(_ask_for_tasks, victims)
            for victim in victims:
                say(f"{victim.url}:\n{victim.log.read_text(errors='replace')[-_LOG_CHARS:]}")
            raise
        finally:
            for victim in victims:
                await asyncio.to_thread(victim.kill)
    return report


def _ask_for_tasks(victims: list[Victim]) -> None:
    """Have the brokers write into their logs what each of their tasks waits for."""
    for victim in victims:
        os.kill(victim.pid, signal.SIGUSR1)
    time.sleep(1)


def _victims(directory: Path, backend: str, cleanup: contextlib.ExitStack) -> list[Victim]:
    if backend == "cluster":
        database = cleanup.enter_context(postgres_server()).new_database()
        return Victim.cluster(directory, database, 3)
    engine = _own_engine(cleanup) if backend == "own-docker" else None
    return [Victim(directory, "local" if backend == "local" else "docker", engine)]


def _own_engine(cleanup: contextlib.ExitStack) -> OwnDocker:
    """Start an engine with the image of sandboxes, which takes half a minute."""
    directory = cleanup.enter_context(tempfile.TemporaryDirectory(prefix="kb-", dir="/var/tmp"))
    engine = OwnDocker(Path(directory))
    cleanup.callback(engine.close)
    engine.start()
    engine.load(IMAGE)
    return engine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--faults", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    parser.add_argument("--backend", default="local", choices=KINDS)
    args = parser.parse_args()

    def say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)  # noqa: T201

    report = asyncio.run(run(args.seconds, args.seed, args.backend, say, args.faults))
    print(report)  # noqa: T201
    for wrong in report.verdict.wrong:
        print(f"WRONG: {wrong}")  # noqa: T201
    return 1 if report.verdict.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
