"""This broker among those that share its store: takes over what others have lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence

from kernelbroker.protocol.errors import Unavailable

from ..sessions.broker_leases import BrokerLease, Estate, LeaseState
from ..sessions.postgres_store import PostgresStore
from .directory import Directory

logger = logging.getLogger(__name__)

_ELSEWHERE_S = 120.0
"""After so long, what a broker at another place had is ended by any broker."""
_POLL_S = 0.1
_CONFIRM_S = 0.02


class Membership:
    """Runs from `start` to `leave`.

    Args:
        place: of this broker; see `BrokerLease.place`.
        take_over: goes on with what was taken over.

    Attributes:
        leaving: this broker opens no sessions any more, and hands over those that it has.
    """

    def __init__(
        self,
        store: PostgresStore,
        directory: Directory,
        place: str,
        take_over: Callable[[Estate], Awaitable[None]],
    ) -> None:
        self.directory = directory
        self.leaving = False
        self._store = store
        self._place = place
        self._take_over = take_over
        self._taking = asyncio.Lock()
        self._wanted = asyncio.Event()
        self._estates: list[Estate] = []
        """Taken in the store, and not gone on with yet. If that fails it is tried again: clients wait."""
        self._lost: dict[int, asyncio.Event] = {}
        """Of brokers that somebody waits for: set when they have no lease any more."""

    @property
    def broker(self) -> int:
        """The number of this broker."""
        return self._store.broker

    @property
    def is_taking(self) -> bool:
        """Whether something is being taken over at this moment."""
        return self._taking.locked()

    async def confirm(self) -> None:
        """Wait until it is certain that no other broker has taken over what this one owns.

        Never returns if one has: the process ends.
        """
        while not self._store.owns:  # noqa: ASYNC110  the lease is renewed in a thread
            await asyncio.sleep(_CONFIRM_S)

    async def watch(self) -> None:
        """Take over what other brokers have lost, until cancelled. Run under the supervisor."""
        while True:
            try:
                await self.take_lost()
            except Unavailable as exc:
                logger.warning("the other brokers are not known: %s", exc.message)
            self._wanted.clear()
            try:
                async with asyncio.timeout(self._store.lease / 4):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    async def take_lost(self) -> None:
        """Take over what can be taken over now. Raises Unavailable."""
        async with self._taking:
            await self._go_on()
            for other in await self._brokers():
                if self.leaving or not self._can_take(other):
                    continue
                estate = await self._store.take(other.id)
                if estate is not None:
                    logger.info("goes on with what the broker %d had", other.id)
                    self._estates.append(estate)
                    await self._go_on()

    async def _go_on(self) -> None:
        while self._estates:
            await self._take_over(self._estates[0])
            del self._estates[0]

    async def lost(self, broker: int) -> None:
        """Wait until a broker has no lease any more: it has ended, or can do nothing."""
        await self._lost.setdefault(broker, asyncio.Event()).wait()

    async def _brokers(self) -> Sequence[BrokerLease]:
        found = await self.directory.brokers()
        valid = {each.id for each in found if each.over < 0}
        for broker, lost in self._lost.items():
            if broker not in valid:
                lost.set()
        return found

    def _can_take(self, other: BrokerLease) -> bool:
        if other.id == self.broker or not other.can_be_taken:
            return False
        return other.place == self._place or other.over >= _ELSEWHERE_S

    async def announce_leaving(self) -> None:
        """Tell the others that this broker leaves. Raises Unavailable."""
        self.leaving = True
        await self._store.set_state(LeaseState.LEAVES)

    async def peer(self) -> BrokerLease | None:
        """Return a broker that new requests can be passed on to; None if there is none."""
        found = [each for each in await self._brokers() if each.serves]
        others = [each for each in found if each.id != self.broker]
        return others[time.time_ns() // 1000 % len(others)] if others else None

    async def others(self) -> Sequence[BrokerLease]:
        """Return the other brokers that answer, also those that leave."""
        return [
            each
            for each in await self._brokers()
            if each.id != self.broker and each.url and not each.can_be_taken
        ]

    async def find(self, owner: int) -> BrokerLease | None:
        """Return a broker if requests can be passed on to it now.

        Otherwise it leaves or is dead: another one takes over soon.
        """
        for each in await self._brokers():
            if each.id == owner and each.serves:
                return each
        self._wanted.set()
        await asyncio.sleep(_POLL_S)
        return None
