"""Asks the database beside the thread that commits, so that a long search delays nobody's output."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from .postgres_database import PostgresDatabase

H = TypeVar("H")
T = TypeVar("T")

_THREADS = 3


class Readers(Generic[H]):
    """A few threads, each with a connection of its own, which is made when it is needed first.

    Args:
        connect: makes a connection. Raises psycopg.Error.
        reader: what jobs get, for a connection.
    """

    def __init__(
        self, connect: Callable[[], PostgresDatabase], reader: Callable[[PostgresDatabase], H]
    ) -> None:
        self._connect = connect
        self._reader = reader
        self._threads = ThreadPoolExecutor(_THREADS, "store reader")
        self._local = threading.local()
        self._databases: list[PostgresDatabase] = []
        self._is_stopping = False

    async def run(self, job: Callable[[H], T]) -> T:
        """Run a job in one of the threads. Raises its errors, and psycopg.Error."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, job)

    def _run(self, job: Callable[[H], T]) -> T:
        if (reader := getattr(self._local, "reader", None)) is None:
            database = self._connect()
            self._databases.append(database)
            reader = self._local.reader = self._reader(database)
            if self._is_stopping:
                database.hurry()
        return job(reader)

    async def stop(self) -> None:
        """End the threads. What they do now ends within seconds."""
        self._is_stopping = True
        for database in [*self._databases]:
            database.hurry()
        await asyncio.to_thread(self._threads.shutdown, cancel_futures=True)
        for database in self._databases:
            database.close()
