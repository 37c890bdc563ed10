"""Operations whose answers are awaited. No I/O."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from .protocol.errors import KernelBrokerError


class PendingReplies:
    """Futures of the answers, by the `op_id` of their operations. True while there are any."""

    def __init__(self) -> None:
        self._waiting: dict[str, asyncio.Future[None]] = {}
        self._count = 0

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def new_id(self) -> str:
        """An `op_id` for the next operation."""
        self._count += 1
        return str(self._count)

    @contextmanager
    def expected(self, op_id: str) -> Iterator[asyncio.Future[None]]:
        """The answer, to be awaited within the block. It raises if the broker refused the operation."""
        reply = self._waiting[op_id] = asyncio.get_running_loop().create_future()
        try:
            yield reply
        finally:
            del self._waiting[op_id]
            if reply.done() and not reply.cancelled():
                reply.exception()  # Retrieved, for the case that sending failed first.

    def done(self, op_id: str | None) -> None:
        """The operation was carried out."""
        if (reply := self._open(op_id)) is not None:
            reply.set_result(None)

    def refuse(self, op_id: str | None, failure: KernelBrokerError) -> bool:
        """The operation was refused. Returns False if this answer is not awaited."""
        if (reply := self._open(op_id)) is None:
            return False
        reply.set_exception(failure)
        return True

    def fail_all(self, failure: KernelBrokerError) -> None:
        """Fail all operations: no answers will come any more."""
        for op_id in self._waiting:
            self.refuse(op_id, failure)

    def _open(self, op_id: str | None) -> asyncio.Future[None] | None:
        reply = self._waiting.get(op_id or "")
        return None if reply is None or reply.done() else reply
