"""Connections to PostgreSQL that do not wait for ever.

A server that stands still, and a network that drops all packets, leave a connection open and silent.
"""

from __future__ import annotations

import time
from typing import Any, TypeVar

import psycopg
from psycopg import OperationalError
from psycopg.abc import PQGen

from .queries import Row

_CONNECT_S = 5

T = TypeVar("T")


class PatientConnection(psycopg.Connection[Row]):
    """A connection that is closed when an answer takes too long.

    Attributes:
        patience: seconds for one answer, also of what waits now.
    """

    patience = 10.0

    def wait(self, gen: PQGen[T], *args: Any, **options: Any) -> T:
        return super().wait(self._patiently(gen), *args, **options)

    def _patiently(self, gen: PQGen[T]) -> PQGen[T]:
        begun = time.monotonic()
        ready = None
        while True:
            try:
                wanted = next(gen) if ready is None else gen.send(ready)
            except StopIteration as end:
                value: T = end.value
                return value
            ready = yield wanted
            # Without an event it comes here from time to time.
            if not ready and time.monotonic() - begun > self.patience:
                self.pgconn.finish()
                raise OperationalError(f"the database did not answer within {self.patience:g} s")


def connect(url: str, purpose: str, *, patience: float, options: str = "") -> PatientConnection:
    """Connect. Raises psycopg.Error.

    Args:
        purpose: shown by the server, behind the product's name.
    """
    connection = PatientConnection.connect(
        url,
        autocommit=True,
        connect_timeout=_CONNECT_S,
        application_name=f"kernelbroker {purpose}",
        options=options,
    )
    connection.patience = patience
    return connection
