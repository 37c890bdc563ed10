"""Webhooks: sends a message to a URL when an execution has ended.

Each message is an entry of the event store, from before its execution is accepted until it is delivered. So
it survives the broker. It is sent with pauses that grow, for a bounded time, and may arrive more than once,
with the same id. One task has one message; it is cancelled when the broker stops, and the next broker
begins again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from random import SystemRandom

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import TooManyRequests, Unavailable

from ..sessions.ids import new_id
from ..sessions.store import Entry, EventStore, ExecutionLog
from .webhook_message import message
from .webhook_sender import Outcome, WebhookSender

logger = logging.getLogger(__name__)

_UNKNOWN_S = 1.0
"""Seconds until the store is asked again for an execution that is being taken over."""
PAUSES_S = (5.0, 30.0, 120.0, 600.0, 1800.0, 3600.0)
"""Between the attempts to deliver a message; the last one repeats."""
_KIND = "webhook"
_MAX_PENDING = 1_000
"""Messages of one tenant that have not been delivered. More executions with a webhook are refused."""
_AT_ONCE = 4
"""Messages of one tenant that are sent at the same time."""


class _Pending(msgspec.Struct, frozen=True):
    """A message to deliver; the value of its entry.

    Attributes:
        ended_at: when the execution had ended, in seconds since the epoch; None as long as it has not.
        attempts: how often it was sent.
    """

    session_id: str
    execution_id: str
    url: str
    ended_at: float | None = None
    attempts: int = 0


class Webhooks:
    """The messages of all tenants.

    Args:
        max_age: seconds after the end of an execution until its message is given up.
        max_wait: seconds that an execution may wait and run, at most.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        store: EventStore,
        sender: WebhookSender | None = None,
        max_age: float = 86400.0,
        max_wait: float = 86400.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._sender = sender or WebhookSender()
        self._max_age = max_age
        self._max_wait = max_wait
        self._sleep = sleep
        self._clock = clock
        self._pending: Counter[str] = Counter()
        self._slots: defaultdict[str, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE)
        )
        self._tasks: set[asyncio.Task[None]] = set()

    def check(self, tenant: str, url: str) -> None:
        """Check whether an execution may have this webhook.

        Raises:
            BadRequest: the URL is not allowed.
            TooManyRequests: too many messages of the tenant wait.
        """
        self._sender.check(url)
        if self._pending[tenant] >= _MAX_PENDING:
            raise TooManyRequests(
                f"{_MAX_PENDING:,} of your results wait for their webhooks: check that these answer, or "
                "leave out callback_url",
                retry_after=60,
            )

    def expect(self, tenant: str, session_id: str, execution_id: str, url: str) -> str:
        """Store the message of an execution that will be accepted. Returns the message's id."""
        name = f"msg_{new_id()}"
        self._put(tenant, name, _Pending(session_id, execution_id, url))
        return name

    def accepted(self, tenant: str, name: str, log: ExecutionLog) -> None:
        """Tell the webhook when this execution has ended."""
        self._start(tenant, self._tell(tenant, name, log))

    def resume(self) -> None:
        """Go on with the messages that an earlier broker has left. Called when its sessions are known."""
        for entry in self._store.entries(_KIND):
            self._start(entry.tenant, self._resume(entry))

    async def stop(self) -> None:
        """Stop sending; what is not delivered stays stored."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _resume(self, entry: Entry) -> None:
        pending = decode_as(entry.value, _Pending)
        while True:
            try:
                log = await self._store.past_execution(
                    entry.tenant, pending.session_id, pending.execution_id
                )
                break
            except Unavailable:  # nobody can tell at this moment
                await asyncio.sleep(_UNKNOWN_S)
        if log is None:  # it was never accepted, or its result is not kept any more
            self._store.drop_entry(_KIND, entry.tenant, entry.name)
        else:
            await self._tell(entry.tenant, entry.name, log)

    async def _tell(self, tenant: str, name: str, log: ExecutionLog) -> None:
        await log.finished()
        entry = self._store.entry(_KIND, tenant, name)
        if entry is None:
            return
        pending = decode_as(entry.value, _Pending)
        ended_at = pending.ended_at or self._clock()
        pending = msgspec.structs.replace(pending, ended_at=ended_at)
        self._put(tenant, name, pending)
        events = [stored.event for stored in log.read()]
        body = message(pending.session_id, pending.execution_id, events, ended_at)
        while True:
            async with self._slots[tenant]:
                outcome, reason = await self._sender.send(pending.url, name, body)
            pending = msgspec.structs.replace(pending, attempts=pending.attempts + 1)
            if outcome is Outcome.DELIVERED:
                break
            pause = PAUSES_S[min(pending.attempts, len(PAUSES_S)) - 1] * SystemRandom().uniform(
                0.8, 1.2
            )
            is_late = self._clock() + pause > ended_at + self._max_age
            if outcome is Outcome.UNWANTED or is_late:
                logger.warning("the webhook %s is given up: %s", name, reason)
                break
            logger.info("the webhook %s is tried again in %.0f s: %s", name, pause, reason)
            self._put(tenant, name, pending)
            await self._sleep(pause)
        self._store.drop_entry(_KIND, tenant, name)

    def _put(self, tenant: str, name: str, pending: _Pending) -> None:
        ended_at = pending.ended_at
        end = self._clock() + self._max_wait if ended_at is None else ended_at
        self._store.put_entry(Entry(_KIND, tenant, name, encode(pending), end + self._max_age))

    def _start(self, tenant: str, work: Coroutine[None, None, None]) -> None:
        self._pending[tenant] += 1
        task = asyncio.create_task(work, name="webhook")
        self._tasks.add(task)

        def ended(task: asyncio.Task[None]) -> None:
            work.close()  # a task that was cancelled before its first step does not close it
            self._tasks.discard(task)
            self._pending[tenant] -= 1
            if not task.cancelled() and (error := task.exception()) is not None:
                logger.error("a webhook failed", exc_info=error)

        task.add_done_callback(ended)
