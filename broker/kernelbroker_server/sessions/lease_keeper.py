"""Renews the lease of a broker, in a thread of its own: a busy event loop does not lose the sessions."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable

import psycopg

from .broker_leases import BrokerLeases, Superseded
from .postgres_connection import PatientConnection, connect

logger = logging.getLogger(__name__)

_RETRY_S = 0.5


class LeaseKeeper:
    """Runs from its creation to `stop`.

    Args:
        broker: the number of the lease, which has just begun.
        seconds: of the lease.
        on_superseded: called in the thread when another broker has taken over.

    Attributes:
        valid_until: by `time.monotonic()`. Until then no other broker can have taken over.
    """

    def __init__(
        self, url: str, broker: int, seconds: float, on_superseded: Callable[[], None]
    ) -> None:
        self.valid_until = 0.0
        self._url = url
        self._broker = broker
        self._seconds = seconds
        self._on_superseded = on_superseded
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread. The lease ends by itself. Blocks for a moment."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        connection: PatientConnection | None = None
        while not self._stopping.is_set():
            pause = self._seconds / 4
            try:
                if connection is None or connection.closed:
                    connection = connect(self._url, "lease", patience=self._seconds / 2)
                asked_at = time.monotonic()
                BrokerLeases(connection).renew(self._broker, self._seconds)
                self.valid_until = asked_at + self._seconds
            except Superseded:
                self._on_superseded()
                break
            except psycopg.Error as exc:
                logger.warning("the lease of this broker is not renewed: %s", exc)
                pause = min(pause, _RETRY_S)
                if connection is not None:
                    connection.close()
            self._stopping.wait(pause)
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()
