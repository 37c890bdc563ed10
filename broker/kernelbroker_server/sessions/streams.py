"""Long connections of clients to a session's sandbox: processes that are watched, and servers in it.

They neither wait for cells nor keep a draining broker waiting. They end with the sandbox.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

from kernelbroker.protocol.errors import TooManyRequests

from .runner import SessionRunner

MAX_STREAMS = 256
"""Of one session at the same time; each holds two connections and a chunk or two."""


_TRANSFERS, _REQUESTS = 12, 4


class Streams:
    """The long connections of one session. While there is one, the session is in use.

    Attributes:
        transfers, requests: to take turns in place of being refused: for files, and for what is done at
            once. Together they are as many as `borrowers.MAX_BORROWERS`.
    """

    def __init__(self, runner: SessionRunner) -> None:
        self._runner = runner
        self._count = 0
        self.transfers = asyncio.Semaphore(_TRANSFERS)
        self.requests = asyncio.Semaphore(_REQUESTS)

    def __len__(self) -> int:
        return self._count

    @contextlib.contextmanager
    def one(self) -> Iterator[None]:
        """Count a connection during the block. Raises TooManyRequests."""
        if self._count >= MAX_STREAMS:
            raise TooManyRequests(
                f"the session has {self._count} open streams; close one of them", retry_after=1
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
            self._runner.touch()
