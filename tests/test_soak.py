"""Many sessions, one after the other and side by side: objects, descriptors and tasks stay as they were.

The sandboxes are scripted, so that a session takes milliseconds. The variable below asks for more of
them; `benchmarks/soak.py` does the same with real sandboxes and looks at the broker's memory.
"""

from __future__ import annotations

import asyncio
import gc
import os
from dataclasses import dataclass
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.sessions.memory_store import MemoryStore

from tests.support.backend import spotless_backend
from tests.support.http import TOKEN, serving
from tests.support.waiting import until
from tests.support.world import world

SESSIONS = int(os.environ.get("KERNELBROKER_TEST_SOAK_SESSIONS", "100"))
SIDE_BY_SIDE, POOL = 4, 2
OBJECTS_PER_SESSION = 5
"""What is kept of closed sessions is bounded: their history, which the first series fills, and names."""


@dataclass(frozen=True)
class State:
    descriptors: int
    tasks: int
    objects: int

    @classmethod
    def now(cls) -> State:
        gc.collect()
        return cls(
            len(list(Path("/proc/self/fd").iterdir())),
            len(asyncio.all_tasks()),
            len(gc.get_objects()),
        )


async def use(broker: kernelbroker.Broker, count: int) -> None:
    """What clients do: sessions with a name and without, cells, a failure, an abandoned stream."""

    async def client(number: int) -> None:
        for turn in range(number, count, SIDE_BY_SIDE):
            async with broker.session(workspace="shared" if turn % 50 == 0 else None) as session:
                assert (await session.run("1")).success
                async for _ in session.stream("2"):
                    if turn % 3 == 0:
                        break
            assert (await broker.run("3")).success

    async with asyncio.TaskGroup() as group:
        for number in range(SIDE_BY_SIDE):
            group.create_task(client(number))


@pytest.mark.slow
async def test_sessions_leave_nothing() -> None:
    """A second series of sessions adds no descriptors and tasks, and hardly any objects."""
    async with (
        spotless_backend() as backend,
        world(backend, pool=PoolLimits(POOL, POOL), store=MemoryStore(max_history=100_000)) as w,
        serving(w) as api,
        kernelbroker.connect(f"http://127.0.0.1:{api.port}", TOKEN) as broker,
    ):

        def is_idle() -> bool:
            status = w.pool.status()
            return (
                not (status.busy_containers or w.registry.list()) and status.idle_containers == POOL
            )

        await use(broker, SESSIONS)
        await until(is_idle, "an idle broker")
        before = State.now()
        await use(broker, SESSIONS)
        await until(is_idle, "an idle broker")
        # On a busy machine the ends of the last connections come later.
        await until(lambda: len(asyncio.all_tasks()) <= before.tasks, "the end of all tasks")
        after = State.now()
        assert after.descriptors <= before.descriptors
        assert (after.objects - before.objects) / SESSIONS < OBJECTS_PER_SESSION, (before, after)
