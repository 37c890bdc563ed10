"""Requests with an idempotency key are carried out once, however often they are sent.

A client that lost an answer sends the request again with the same key, and gets the outcome of the
first one. A request that failed is forgotten, so that it can be tried again with its key. Source:
draft-ietf-httpapi-idempotency-key-header-07, section 2.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from kernelbroker.protocol.errors import Conflict, Unavailable

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


@dataclass(frozen=True, slots=True)
class _Entry(Generic[T]):
    at: float
    fingerprint: bytes
    work: asyncio.Task[T]


class IdempotencyCache(Generic[T]):
    """The keys of one tenant, for ten minutes each.

    Args:
        weigh: the bytes that an outcome holds.
    """

    def __init__(
        self, weigh: Callable[[T], int], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._weigh = weigh
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
            task = asyncio.create_task(work())
            entry = self._entries[key.value] = _Entry(self._clock(), key.fingerprint, task)
            task.add_done_callback(lambda _: self._forget_failed(key.value, task))
        elif entry.fingerprint != key.fingerprint:
            raise Conflict("this Idempotency-Key was used for another request; choose a new one")
        try:
            return await asyncio.shield(entry.work), repeated
        except asyncio.CancelledError:
            if entry.work.cancelled():
                raise Unavailable("the broker is shutting down", retry_after=10) from None
            raise

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
