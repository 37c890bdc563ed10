"""What a broker takes over from others, when that fails at first."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.backends.local_orphans import LocalOrphans
from kernelbroker_server.cluster.cluster import Cluster
from kernelbroker_server.cluster.membership import Membership
from kernelbroker_server.sessions.broker_leases import BrokerLease, Estate, LeaseState

ESTATE = Estate(7, {"local": ("gone", "there")})


class FakeStore:
    """Lets others' sessions be taken once, as the database does."""

    broker, lease = 1, 0.1

    def __init__(self) -> None:
        self.left: list[Estate] = [ESTATE]

    async def take(self, broker: int) -> Estate | None:
        return self.left.pop() if self.left else None


class FakeDirectory:
    async def brokers(self) -> list[BrokerLease]:
        return [BrokerLease(2, "", "here", LeaseState.SERVES, over=5.0)]


def membership(take_over: Any) -> Membership:
    store: Any = FakeStore()
    directory: Any = FakeDirectory()
    return Membership(store, directory, "here", take_over)


async def test_what_was_taken_is_gone_on_with_after_a_failure() -> None:
    """The database gives sessions away once: if going on with them fails, it is tried again."""
    tries: list[Estate] = []

    async def take_over(estate: Estate) -> None:
        tries.append(estate)
        if len(tries) < 3:
            raise OSError("injected")

    found = membership(take_over)
    for _ in range(2):
        with pytest.raises(OSError, match="injected"):
            await found.take_lost()
    await found.take_lost()
    assert tries == [ESTATE] * 3
    await found.take_lost()
    assert len(tries) == 3


async def test_sandboxes_that_cannot_be_reached_hold_nothing_up() -> None:
    """Sessions whose sandboxes are gone end, and their clients are told; the others go on."""
    taken: list[str] = []
    adopted = asyncio.Event()

    async def take(broker_id: str, _: int) -> bool:
        if broker_id == "gone":
            raise FileNotFoundError(broker_id)
        taken.append(broker_id)
        return True

    async def run(_: object) -> None:
        adopted.set()

    cluster: Any = SimpleNamespace(
        _backends=SimpleNamespace(by_name={"local": SimpleNamespace(take=take)}),
        _adoption=SimpleNamespace(run=run),
        _rescue=None,
    )
    await Cluster._take_over(cluster, ESTATE)
    assert taken == ["there"]
    assert adopted.is_set()


def test_a_directory_that_goes_has_no_sandboxes(tmp_path: Path) -> None:
    """A broker that starts may be removing what a dead one has left."""
    context: Any = SimpleNamespace(directories=SimpleNamespace(sandboxes=tmp_path / "gone"))
    orphans = LocalOrphans(context)
    assert orphans.left == set()
    assert orphans.adopt([SandboxSpec()], None) == []
