"""Requests with an idempotency key are carried out once, however often they are sent.

A client that lost an answer sends the request again with the same key, and gets the outcome of the
first one. A request that failed is forgotten, so that it can be tried again with its key. Source:
draft-ietf-httpapi-idempotency-key-header-07, section 2.

Keys are stored, so that this holds across restarts of the broker as well: before the work begins, and again
with its outcome. A key without an outcome belongs to work during which the broker ended.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import Conflict, Unavailable

from ..sessions.store import Entry, EventStore

_REMEMBERED_S = 600.0
_REMEMBERED_MAX = 1_000
_REMEMBERED_BYTES = 32 * 1024**2
"""Bytes that all outcomes may hold together, not counting the latest."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """A client's key for one request.

    Attributes:
        fingerprint: differs for every other request.
    """

    value: str
    fingerprint: bytes


class StoredKeys(Generic[T]):
    """The stored keys of one tenant, for one kind of work.

    Args:
        dump: returns the part of an outcome that is stored.
        load: returns the outcome if it is not in memory, as after a restart. Gets None if the broker
            ended during the work.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: EventStore,
        kind: str,
        tenant: str,
        dump: Callable[[T], Sequence[str]],
        load: Callable[[Sequence[str] | None], Awaitable[T]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._kind = kind
        self._tenant = tenant
        self._dump = dump
        self._load = load
        self._clock = clock

    def get(self, value: str) -> tuple[bytes, Coroutine[Any, Any, T]] | None:
        """Return the fingerprint of a stored key, and a coroutine that loads its outcome."""
        entry = self._store.entry(self._kind, self._tenant, value)
        if entry is None:
            return None
        stored = decode_as(entry.value, _Stored)
        return bytes.fromhex(stored.fingerprint), self._loading(stored.outcome)

    def put(self, key: IdempotencyKey, outcome: T | None = None) -> None:
        """Store a key, with its outcome if there is one."""
        dumped = None if outcome is None else list(self._dump(outcome))
        value = encode(_Stored(key.fingerprint.hex(), dumped))
        until = self._clock() + _REMEMBERED_S
        self._store.put_entry(Entry(self._kind, self._tenant, key.value, value, until))

    def drop(self, value: str) -> None:
        self._store.drop_entry(self._kind, self._tenant, value)

    async def _loading(self, outcome: Sequence[str] | None) -> T:
        return await self._load(outcome)


class _Stored(msgspec.Struct):
    fingerprint: str
    outcome: list[str] | None


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    at: float
    fingerprint: bytes
    work: asyncio.Task[T]


class IdempotencyCache(Generic[T]):
    """The keys of one tenant, for ten minutes each.

    Args:
        weigh: the bytes that an outcome holds.
        stored: keeps the keys for the next broker; None for not at all.
    """

    def __init__(
        self,
        weigh: Callable[[T], int],
        clock: Callable[[], float] = time.monotonic,
        stored: StoredKeys[T] | None = None,
    ) -> None:
        self._weigh = weigh
        self._stored = stored
        self._clock = clock
        self._entries: OrderedDict[str, _Entry[T]] = OrderedDict()

    async def once(
        self, key: IdempotencyKey, work: Callable[[], Coroutine[Any, Any, T]]
    ) -> tuple[T, bool]:
        """Return the outcome of `work` from this call or an earlier one, and whether it was an
        earlier one.

        The work continues if the caller is cancelled. The next caller with this key gets its outcome.

        Raises:
            Conflict: the key was used for another request.
            Unavailable: the broker stops.
            The errors of `work`.
        """
        self._forget_old()
        entry = self._entries.get(key.value)
        repeated = entry is not None
        if entry is None:
            found = None if self._stored is None else self._stored.get(key.value)
            repeated = found is not None
            fingerprint, loading = found or (key.fingerprint, self._first(key, work))
            task = asyncio.create_task(loading)
            entry = self._entries[key.value] = _Entry(self._clock(), fingerprint, task)
            task.add_done_callback(lambda _: self._forget_failed(key.value, task))
        if entry.fingerprint != key.fingerprint:
            raise Conflict("this Idempotency-Key was used for another request; choose a new one")
        try:
            return await asyncio.shield(entry.work), repeated
        except asyncio.CancelledError:
            if entry.work.cancelled():
                raise Unavailable("the broker is shutting down", retry_after=10) from None
            raise

    async def _first(self, key: IdempotencyKey, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do the work of a new key."""
        if self._stored is None:
            return await work()
        self._stored.put(key)
        try:
            outcome = await work()
        except BaseException:
            self._stored.drop(key.value)
            raise
        self._stored.put(key, outcome)
        return outcome

    def cancel(self) -> None:
        """Cancel the work that has not ended."""
        for entry in self._entries.values():
            entry.work.cancel()

    def _forget_failed(self, key: str, task: asyncio.Task[T]) -> None:
        if not _succeeded(task):
            self._entries.pop(key, None)

    def _forget_old(self) -> None:
        horizon = self._clock() - _REMEMBERED_S
        weights = {
            key: self._weigh(entry.work.result()) if _succeeded(entry.work) else 0
            for key, entry in self._entries.items()
        }
        held = sum(weights.values())
        for key, entry in list(self._entries.items()):
            over = len(self._entries) > _REMEMBERED_MAX or held > _REMEMBERED_BYTES
            if not (over or entry.at < horizon):
                break
            if entry.work.done():
                held -= weights[key]
                del self._entries[key]


def _succeeded(work: asyncio.Task[T]) -> bool:
    return work.done() and not work.cancelled() and work.exception() is None
