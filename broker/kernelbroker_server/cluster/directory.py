"""Asks the shared database which broker owns what. Nothing here changes what is owned, except claims."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import psycopg
from kernelbroker.protocol.errors import Unavailable

from ..sessions.broker_leases import NOW, BrokerLease, LeaseState

_TIMEOUT_S = 10.0
_CLAIM_S = 700.0
"""How long a broker answers requests with a name that it has claimed: longer than idempotency keys live."""


class Directory:
    """Has a connection of its own: it answers while much is stored, and after the store has stopped."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()
        self._ahead = time.time() - time.monotonic()
        """How far the database's clock is ahead of the monotonic one, as it was seen last."""

    def now(self) -> float:
        """Return the time of the database, in seconds: all brokers have the same, whatever their clocks."""
        return time.monotonic() + self._ahead

    async def close(self) -> None:
        if self._connection is not None:
            await self._connection.close()
            self._connection = None

    async def brokers(self) -> Sequence[BrokerLease]:
        """Return all brokers. Raises Unavailable."""
        rows = await self._rows(
            f"SELECT id, url, place, state, {NOW} - until, {NOW} FROM brokers ORDER BY id"
        )
        if rows:
            self._ahead = rows[-1][-1] - time.monotonic()
        return [
            BrokerLease(id, url, place, LeaseState(state), over)
            for id, url, place, state, over, _ in rows
        ]

    async def owner_of_session(self, session_id: str, tenant: str | None) -> int | None:
        """Return the broker that owns an open session; None if there is none, or it is not clear which."""
        rows = await self._rows(
            """SELECT DISTINCT owner FROM sessions WHERE session_id = %s AND ended_at IS NULL
            AND (%s::text IS NULL OR tenant = %s)""",
            session_id,
            tenant,
            tenant,
        )
        return rows[0][0] if len(rows) == 1 else None

    async def owner_of_execution(self, execution_id: str, tenant: str | None) -> int | None:
        """Return the broker that owns the open session of an execution."""
        rows = await self._rows(
            """SELECT DISTINCT owner FROM sessions JOIN executions ON session_key = key
            WHERE id = %s AND sessions.ended_at IS NULL AND (%s::text IS NULL OR tenant = %s)""",
            execution_id,
            tenant,
            tenant,
        )
        return rows[0][0] if len(rows) == 1 else None

    async def owner_of_entry(self, kind: str, name: str) -> int | None:
        """Return the broker that has stored an entry."""
        rows = await self._rows(
            "SELECT owner FROM entries WHERE kind = %s AND name = %s", kind, name
        )
        return rows[0][0] if len(rows) == 1 else None

    async def claim(self, kind: str, tenant: str, name: str, broker: int) -> int:
        """Claim a name for a broker, unless another one has it. Returns who has it."""
        rows = await self._rows(
            f"""INSERT INTO claims AS c VALUES (%s, %s, %s, %s, {NOW} + %s)
            ON CONFLICT (kind, tenant, name) DO UPDATE SET
                owner = CASE WHEN c.until <= {NOW} OR NOT EXISTS
                    (SELECT 1 FROM brokers WHERE id = c.owner AND state = 'serves')
                    THEN excluded.owner ELSE c.owner END,
                until = excluded.until
            RETURNING owner""",
            kind,
            tenant,
            name,
            broker,
            _CLAIM_S,
        )
        return int(rows[0][0])

    async def exchange_usage(
        self, broker: int, own: Sequence[tuple[str, str, float]]
    ) -> dict[tuple[str, str], float]:
        """Write what tenants use here: tenant, name, value. Returns the sums of the other brokers."""
        tenants, names, values = (list(each) for each in zip(*own, strict=True))
        await self._rows(
            """INSERT INTO tenant_usage SELECT t, n, %s, v FROM
            unnest(%s::text[], %s::text[], %s::float8[]) AS u (t, n, v)
            ON CONFLICT (tenant, name, owner) DO UPDATE SET value = excluded.value RETURNING 1""",
            broker,
            tenants,
            names,
            values,
        )
        rows = await self._rows(
            """SELECT tenant, name, sum(value) FROM tenant_usage
            WHERE owner <> %s AND owner IN (SELECT id FROM brokers) AND tenant = ANY(%s)
            GROUP BY tenant, name""",
            broker,
            tenants,
        )
        return {(tenant, name): value for tenant, name, value in rows}

    async def _rows(self, statement: str, *values: object) -> list[Any]:
        """Raises Unavailable."""
        try:
            async with asyncio.timeout(_TIMEOUT_S), self._lock:
                connection = self._connection
                if connection is None or connection.closed:
                    connection = self._connection = await psycopg.AsyncConnection.connect(
                        self._url, autocommit=True, application_name="kernelbroker directory"
                    )
                cursor = await connection.execute(statement, values)
                return await cursor.fetchall()
        except (psycopg.Error, TimeoutError) as exc:
            raise Unavailable(
                f"the store's database cannot be asked: {exc}", retry_after=2
            ) from exc
