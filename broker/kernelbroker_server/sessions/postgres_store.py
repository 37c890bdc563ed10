"""An event store on PostgreSQL, which several brokers share.

Open sessions and their executions are in the memory of the broker that owns them. A thread commits each
change, in groups: what comes while it commits is the next group. Readers see an event when it is committed,
so `kill -9` of a broker loses nothing that a client has seen, and the broker that goes on with the session
has all of it.

While the database cannot be reached, running cells go on, and their events wait in memory.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import TypeVar

import psycopg
from kernelbroker.protocol.errors import Unavailable
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest

from .broker_leases import BrokerLeases, Estate, LeaseState, Superseded
from .durable_log import DurableLog
from .history import History
from .lease_keeper import LeaseKeeper
from .memory_store import MemoryStore
from .postgres_database import PostgresDatabase
from .postgres_log import PostgresLog
from .postgres_reads import Readers
from .postgres_schema import NewerSchema
from .recorded_store import RecordedStore
from .records import Record, encode_record
from .store_thread import StoreThread
from .superseded import end_superseded

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MAX_WAITING = 32 * 1024**2
"""Bytes of records that wait for the database."""
_GROUP_BYTES = 4 * 1024**2
"""Of records in one transaction, about."""
_GROUP_RECORDS = 2_000
_READ_S = 10.0
"""For how long an answer of the database is awaited."""
_COMMIT_S = 10.0
"""For how long a session waits until it is stored."""
_STOP_S = 10.0
"""For how long the broker's end waits until the last changes are stored."""


class PostgresHistory(History):
    """What is past, of all brokers."""

    shares = True
    _database: PostgresDatabase

    @property
    def database(self) -> PostgresDatabase:
        return self._database

    def end_lost(self, adopted: Collection[str] = ()) -> None:
        """End what was taken over, except adopted sessions and what goes on in them."""
        results = self.lost_results(adopted)
        self._database.end_lost(results, "the broker ended", self._clock(), adopted)


class _Commits:
    """See `postgres_log.Commits`."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.last = 0
        self.stored = 0
        self._callbacks: deque[tuple[int, Callable[[], None]]] = deque()

    def when_stored(self, callback: Callable[[], None]) -> None:
        if self.stored >= self.last:
            callback()
        else:
            self._callbacks.append((self.last, callback))

    async def wait(self, timeout: float | None = None) -> bool:
        if self.stored >= self.last:
            return True
        done = asyncio.Event()
        self.when_stored(done.set)
        try:
            async with asyncio.timeout(timeout):
                await done.wait()
        except TimeoutError:
            return False
        return True

    def committed(self, count: int) -> None:
        """So many further records are committed."""
        self.stored += count
        while self._callbacks and self._callbacks[0][0] <= self.stored:
            self._callbacks.popleft()[1]()


@dataclass(slots=True)
class _Open:
    """The parts of an open store."""

    database: PostgresDatabase
    """Of the thread that commits."""
    thread: StoreThread
    commits: _Commits
    readers: Readers[PostgresHistory]
    keeper: LeaseKeeper


class PostgresStore(RecordedStore):
    """An event store in a database.

    Args:
        url: of the database, as libpq reads it.
        retention, max_history, clock: see `DurableStore`. The history is that of all brokers.
        lease: seconds for which this broker owns its sessions after each renewal.
        place: brokers at the same place can take over each other's sandboxes.
        on_superseded: called when another broker has taken over. Nothing is written then.

    Attributes:
        broker: the number of this broker's lease, after `start`.
    """

    def __init__(
        self,
        url: str,
        retention: float = 86400.0,
        max_history: int = 0,
        clock: Callable[[], float] = time.time,
        *,
        lease: float = 10.0,
        place: str = "",
        on_superseded: Callable[[str], None] = end_superseded,
    ) -> None:
        super().__init__(retention, max_history, clock)
        self.url = url
        self.lease = lease
        self.broker = 0
        self._place = place
        self._on_superseded = on_superseded
        self._superseded = False
        self._open: _Open | None = None
        self._waiting: deque[tuple[Record, int]] = deque()
        self._waiting_size = 0
        self._unread = set[tuple[object, ...]]()

    # Opening and closing.

    async def start(self) -> None:
        """Connect, and begin the lease. Raises OSError."""
        try:
            database = await asyncio.to_thread(PostgresDatabase, self.url)
            register = partial(database.leases.register, "", self._place, self.lease)
            self.broker = database.broker = await asyncio.to_thread(register)
        except (psycopg.Error, NewerSchema) as exc:
            raise OSError(None, f"the database cannot be used: {exc}") from exc
        commits = _Commits(asyncio.get_running_loop())
        tidy = partial(database.expire_at, self._retention, self._max_history, self._clock)
        thread = StoreThread(partial(self._copy, database, commits), tidy, group=0)
        keeper = LeaseKeeper(self.url, self.broker, self.lease, self._end_superseded)
        readers = Readers(self._reading_database, self._history)
        self._open = _Open(database, thread, commits, readers, keeper)

    def _reading_database(self) -> PostgresDatabase:
        database = PostgresDatabase(self.url, patience=_READ_S)
        database.broker = self.broker
        return database

    def _history(self, database: PostgresDatabase) -> PostgresHistory:
        history = PostgresHistory(database, self._retention, self._clock)
        history.unread = self._unread
        return history

    async def stop(self) -> None:
        """Store what waits, and end the lease: others can take over what is still open.

        A database that does not answer holds this up for seconds.
        """
        if (opened := self._open) is None:
            return
        self._open = None
        if opened.thread.problem is None:
            await opened.commits.wait(_STOP_S)
        opened.database.hurry()
        await opened.thread.stop()
        await opened.readers.stop()
        await asyncio.to_thread(opened.keeper.stop)
        try:
            if not self._superseded:
                await asyncio.to_thread(opened.database.leave)
        except (psycopg.Error, Superseded) as exc:
            logger.warning("the lease of this broker could not be ended: %s", exc)
        finally:
            opened.database.close()

    def problems(self) -> Sequence[str]:
        if (opened := self._open) is None:
            return []
        error = opened.thread.problem
        found = [] if error is None else [f"store: new results are not stored: {error}"]
        return found + History.problems_of(self._unread)

    # The lease.

    @property
    def owns(self) -> bool:
        """Whether it is certain that no other broker has taken over."""
        return self._open is None or time.monotonic() < self._open.keeper.valid_until

    async def announce(self, url: str, directories: Mapping[str, Sequence[str]]) -> None:
        """Tell the others where this broker answers, and where its sandboxes are. Raises Unavailable."""
        await self._lease(lambda leases: leases.announce(self.broker, url, directories))

    async def set_state(self, state: LeaseState) -> None:
        """Tell the other brokers what this one does. Raises Unavailable."""
        await self._lease(lambda leases: leases.change(self.broker, state))

    async def take(self, broker: int) -> Estate | None:
        """Take over what a broker owned whose lease has ended; see `BrokerLeases.take`.

        `adoptable` and `end_lost` follow. Raises Unavailable.
        """
        estate = await self._lease(lambda leases: leases.take(broker, self.broker))
        if estate is not None:
            for entry in await self._query(lambda history: history.entries()):
                if super(RecordedStore, self).entry(entry.kind, entry.tenant, entry.name) is None:
                    MemoryStore.put_entry(self, entry)
        return estate

    async def _lease(self, change: Callable[[BrokerLeases], T]) -> T:
        try:
            return await self._query(lambda history: change(history.database.connected_leases))
        except Superseded:
            self._end_superseded()
            raise Unavailable("another broker has taken over", retry_after=1) from None

    # Changes.

    async def flushed(self) -> None:
        if (opened := self._open) is not None and not await opened.commits.wait(_COMMIT_S):
            raise Unavailable(self._silence(opened), retry_after=2)

    @staticmethod
    def _silence(opened: _Open) -> str:
        why = opened.thread.problem or "it does not answer in time"
        return f"the store's database takes no changes: {why}"

    async def reserve(self, tenant: str, session_id: str, limit: int) -> bool:
        return await self._query(
            lambda history: history.database.reserve(tenant, session_id, limit)
        )

    async def unreserve(self, tenant: str, session_id: str) -> None:
        await self._query(lambda history: history.database.unreserve(tenant, session_id))

    def _new_log(
        self,
        number: int,
        execution_id: str,
        request: ExecutionRequest,
        packages: Sequence[str],
        findings: Sequence[Finding],
        *,
        allow_stdin: bool,
    ) -> DurableLog:
        assert self._open is not None, "start() comes first"
        return PostgresLog(
            number,
            self._record,
            self._open.commits,
            execution_id,
            request,
            packages,
            findings,
            allow_stdin=allow_stdin,
        )

    def _take_number(self) -> int:
        # Unique among brokers, and later executions of a session have higher ones, whoever owns it.
        now = time.time_ns() // 1000 * 1024 + self.broker % 1024
        number = max(self._next_number + 1023 & ~1023 | self.broker % 1024, now)
        self._next_number = number + 1
        return number

    def _record(self, record: Record) -> bool:
        if (opened := self._open) is None or self._superseded:
            return False
        size = len(encode_record(record))
        if self._waiting_size + size > _MAX_WAITING:
            return False
        opened.commits.last += 1
        self._waiting_size += size
        self._waiting.append((record, size))
        opened.thread.wake()
        return True

    def expect_newest(self) -> None:
        if self._superseded:
            self._on_superseded(self.url)

    def _copy(self, database: PostgresDatabase, commits: _Commits) -> None:
        """Commit what waits, in groups. Called by the thread."""
        while self._waiting and not self._superseded:
            group, size = [], 0
            for record, weight in [*islice(self._waiting, _GROUP_RECORDS)]:
                group.append(record)
                size += weight
                if size >= _GROUP_BYTES:
                    break
            try:
                database.apply(group)
            except Superseded:
                self._end_superseded()
                return
            for _ in group:
                self._waiting.popleft()
            commits.loop.call_soon_threadsafe(self._committed, commits, len(group), size)

    def _committed(self, commits: _Commits, count: int, size: int) -> None:
        self._waiting_size -= size
        commits.committed(count)

    def _end_superseded(self) -> None:
        if not self._superseded:
            self._superseded = True
            self._on_superseded(self.url)

    # History.

    async def _query(self, query: Callable[[PostgresHistory], T]) -> T:
        if (opened := self._open) is None:
            raise Unavailable("the broker is shutting down", retry_after=10)
        try:
            # The answer has what was recorded before.
            if not await opened.commits.wait(0 if opened.thread.problem else _READ_S):
                raise Unavailable(self._silence(opened), retry_after=2)
            return await opened.readers.run(query)
        except psycopg.Error as exc:
            logger.warning("the database cannot be asked: %s", exc)
            raise Unavailable(
                f"the store's database cannot be asked: {exc}", retry_after=2
            ) from exc
