"""Simulates thousands of sessions: a day's traffic, a burst of arrivals, and the loss of a node.

Pool, sessions, leases, executions and the event store are the broker's own code. The nodes with their
sandboxes are simulated (`simulated_cluster.py`): launches, cells and the broker's processor take the
times of benchmarks/README.md. The clock is virtual (`virtual_time.py`), so that a run is not the slower
on a busy machine, and two runs with one seed print the same. What is not simulated: the network between
machines, slow disks, and differences between nodes.

The sessions arrive at random over `--minutes`; every fifth of them arrives within ten seconds in the
middle. Each runs cells, thinks in between, and is closed. After three quarters of the time a node is
lost, with its sandboxes; cells wait there until the broker is told.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import random
import resource
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import virtual_time
from figures import percentile

_CELLS, _THINK_S, _CELL_S = 5.0, 15.0, 0.1
"""The means of a session's cells, of the pause between two, and of a cell. Assumptions: nobody measured
them."""
_BURST, _BURST_S = 0.2, 10.0
_DEADLINE_S = 60.0


@dataclass
class Tally:
    """What was measured, in seconds of the virtual clock."""

    opens: list[float] = field(default_factory=list)
    burst_opens: list[float] = field(default_factory=list)
    cells: list[float] = field(default_factory=list)
    recoveries: list[float] = field(default_factory=list)
    refused: int = 0
    lost: int = 0
    leased_s: float = 0.0
    longest_queue: int = 0
    most_open: int = 0
    now_open: int = 0


async def simulate(asked: argparse.Namespace, root: Path) -> dict[str, Any]:
    """Run the simulation in a loop of `virtual_time`. Returns the figures."""
    # Only now, since these modules keep the clock that is there when they are imported.
    from kernelbroker_server.backends.base import SandboxSpec
    from kernelbroker_server.pool import warm_sandbox
    from kernelbroker_server.pool.runner import Pool
    from kernelbroker_server.pool.state import PoolLimits
    from kernelbroker_server.service.tenant_service import TenantServices
    from kernelbroker_server.sessions.admission import Admission
    from kernelbroker_server.sessions.limits import SessionLimits
    from kernelbroker_server.sessions.memory_store import MemoryStore
    from kernelbroker_server.supervisor import Supervisor
    from kernelbroker_server.tenants.tenant import DEFAULT
    from kernelbroker_server.workspaces.directory_store import DirectoryStore
    from simulated_cluster import LATENCIES, Cluster, Processor, gateway_of

    loop = asyncio.get_running_loop()
    chance = random.Random(asked.seed)
    broker, tally = Processor(), Tally()
    latencies = dataclasses.replace(LATENCIES[asked.backend], detection=asked.detection)
    cluster = Cluster(root, latencies, broker, asked.nodes, asked.places, asked.cores)
    warm_sandbox.GatewayConnection = gateway_of(cluster)  # type: ignore[misc]
    pool = Pool(
        cluster,
        SandboxSpec(),
        PoolLimits(
            min_size=asked.warm,
            max_size=cluster.capacity,
            max_waiters=asked.sessions,
            max_launches=asked.nodes * asked.cores,
        ),
        acquire_timeout=_DEADLINE_S,
    )
    supervisor, store = Supervisor(), MemoryStore()
    workspaces = DirectoryStore(root, retention=0)
    admission = Admission(asked.sessions, asked.sessions)
    tenants = TenantServices(
        {"default": pool}, SessionLimits(), admission, workspaces, store, supervisor=supervisor
    )
    service = tenants.of(DEFAULT)
    workspaces.start(supervisor)
    pool.start()
    while pool.status().idle_containers < asked.warm:  # noqa: ASYNC110 - begin with a full pool
        await asyncio.sleep(0.1)
    user = _User(service, broker, cluster, tally, asked.seed)
    length = 60.0 * asked.minutes
    burst = round(_BURST * asked.sessions)
    arrivals = [(length / 2 + chance.uniform(0, _BURST_S), True) for _ in range(burst)]
    arrivals += [(chance.uniform(0, length), False) for _ in range(asked.sessions - burst)]
    begin = loop.time()
    watching = asyncio.create_task(_watch(pool, tally))
    losing = asyncio.create_task(_lose_a_node(cluster, tally, 0.75 * length))
    users = [
        asyncio.create_task(user.live(number, at, in_burst))
        for number, (at, in_burst) in enumerate(sorted(arrivals))
    ]
    await asyncio.gather(*users, losing)
    seconds = loop.time() - begin
    watching.cancel()
    await supervisor.stop()
    await tenants.stop("the simulation is over")
    await workspaces.stop()
    await pool.stop(10)
    await cluster.stop()
    node_hours = asked.nodes * seconds / 3600
    return {
        "sessions": asked.sessions,
        "refused": tally.refused,
        "minutes": round(seconds / 60, 1),
        "nodes": asked.nodes,
        "most sessions open": tally.most_open,
        "most sandboxes": cluster.most,
        "longest queue": tally.longest_queue,
        "lease ms": _spread(tally.opens),
        "lease in the burst ms": _spread(tally.burst_opens),
        "cell ms": _spread(tally.cells),
        "sandboxes on the lost node": tally.lost,
        "first cell after it ms": _spread(tally.recoveries),
        "broker's processor %": round(100 * broker.busy / seconds, 1),
        "sandbox hours": round(cluster.held / 3600, 2),
        "leased %": round(100 * tally.leased_s / cluster.held, 1),
        "node hours": round(node_hours, 2),
        "cost of 1,000 sessions": round(1000 * node_hours * asked.price / asked.sessions, 3),
    }


class _User:
    """Opens sessions, runs cells in them and closes them, as people and agents do."""

    def __init__(self, service: Any, broker: Any, cluster: Any, tally: Tally, seed: int) -> None:
        self._service, self._broker, self._cluster = service, broker, cluster
        self._tally, self._seed = tally, seed

    async def live(self, number: int, at: float, in_burst: bool) -> None:
        from kernelbroker.protocol.errors import RequestError
        from kernelbroker.protocol.messages import SessionOptions

        chance, loop = random.Random(f"{self._seed} {number}"), asyncio.get_running_loop()
        await asyncio.sleep(at)
        asked_at, tally = loop.time(), self._tally
        try:
            await self._broker.work(self._cluster.latencies.open)
            session, _ = await self._service.sessions.open(SessionOptions(session_id=f"s{number}"))
        except RequestError:
            tally.refused += 1
            return
        took = loop.time() - asked_at
        (tally.burst_opens if in_burst else tally.opens).append(took)
        tally.now_open += 1
        tally.most_open = max(tally.most_open, tally.now_open)
        leased_at = loop.time()
        for _ in range(1 + round(chance.expovariate(1 / (_CELLS - 1)))):
            await self._run(session, chance.expovariate(1 / _CELL_S))
            await asyncio.sleep(chance.expovariate(1 / _THINK_S))
        tally.leased_s += loop.time() - leased_at
        await self._broker.work(self._cluster.latencies.close)
        await self._service.sessions.close(session.id)
        tally.now_open -= 1

    async def _run(self, session: Any, seconds: float) -> None:
        from kernelbroker.protocol.messages import ExecutionRequest

        loop = asyncio.get_running_loop()
        asked_at, restarts = loop.time(), session.restarts
        lost = session._lease.alive is None
        await self._broker.work(self._cluster.latencies.run)
        log = self._service.executions.submit(session, ExecutionRequest(code=f"#{seconds:.6f}\n1"))
        async for _ in log.follow():
            pass
        own = loop.time() - asked_at - seconds
        if lost or session.restarts != restarts:
            self._tally.recoveries.append(own)
        else:
            self._tally.cells.append(own)


async def _watch(pool: Any, tally: Tally) -> None:
    while True:
        tally.longest_queue = max(tally.longest_queue, pool.status().pending_requests)
        await asyncio.sleep(0.05)


async def _lose_a_node(cluster: Any, tally: Tally, after: float) -> None:
    await asyncio.sleep(after)
    tally.lost = await cluster.lose(cluster.nodes[0])


def _spread(seconds: list[float]) -> dict[str, float]:
    if not seconds:
        return {}
    return {f"p{each}": round(1000 * percentile(seconds, each), 1) for each in (50, 99)}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sessions", type=int, action="append", help="default: 1,000, then 10,000")
    parser.add_argument("--minutes", type=float, default=10.0, help="in which they arrive")
    parser.add_argument("--backend", choices=("local", "docker"), default="local", help="its times")
    parser.add_argument("--nodes", type=int, help="default: one for 120 sessions")
    parser.add_argument("--places", type=int, default=60, help="sandboxes of a node")
    parser.add_argument("--cores", type=int, default=8, help="of a node")
    parser.add_argument(
        "--warm", type=int, help="min_size of the pool; default: 2 %% of the sessions"
    )
    parser.add_argument("--price", type=float, default=0.40, help="of a node for an hour")
    parser.add_argument(
        "--detection",
        type=float,
        default=40.0,
        help="seconds until the broker knows of a lost node",
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--json", action="store_true", help="print JSON alone, the same in each run"
    )
    return parser.parse_args()


def main() -> int:
    asked = _arguments()
    counts, nodes, warm = asked.sessions or [1000, 10_000], asked.nodes, asked.warm
    clock, loop = time.perf_counter, virtual_time.install()
    asyncio.set_event_loop(loop)
    for count in counts:
        asked.sessions = count
        asked.nodes = nodes or max(3, -(-count // 120))
        asked.warm = max(2, count // 50) if warm is None else warm
        began = clock()
        with tempfile.TemporaryDirectory(prefix="kb-simulate-") as root:
            figures = loop.run_until_complete(simulate(asked, Path(root)))
        if asked.json:
            print(json.dumps(figures))
            continue
        for name, value in figures.items():
            if isinstance(value, dict):
                value = "   ".join(f"{each} {number:>9,.1f}" for each, number in value.items())
            print(f"{name:<28}{value if isinstance(value, str) else f'{value:,}':>12}")
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        print(f"({clock() - began:.0f} s of this machine, {memory} MiB at most)\n")
    loop.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
