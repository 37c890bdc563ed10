"""The contract of the store of checkpoints. Does no I/O.

A checkpoint is a stream of bytes that a sandbox made and a sandbox will read, with a description. The
broker never looks into the stream. A checkpoint is identified by its tenant and its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from kernelbroker.protocol.messages import CheckpointInfo

FOR_ONE_USE = "."
"""The first character of the names of checkpoints that are made for a fork. No client can name them."""


@dataclass(frozen=True, slots=True)
class CheckpointLimits:
    """The bounds of one tenant's checkpoints.

    Attributes:
        size: bytes of one checkpoint.
        total_size: bytes of all together.
        count: how many there may be.
        retention: seconds that one is kept.
    """

    size: int = 4 * 1024**3
    total_size: int = 20 * 1024**3
    count: int = 100
    retention: float = 30 * 86400.0


class CheckpointStore(ABC):
    """All checkpoints of all tenants.

    Attributes:
        limits: the bounds for each tenant.
    """

    limits: CheckpointLimits

    @abstractmethod
    async def save(
        self,
        tenant: str,
        info: CheckpointInfo,
        data: AsyncIterable[bytes],
        retention: float | None = None,
    ) -> CheckpointInfo:
        """Store a checkpoint, in place of one with the same name, when `data` has ended.

        If it raises or is cancelled, nothing is stored and an earlier checkpoint stays. A name with a
        leading dot is the broker's own, and does not count for the limit of checkpoints.

        Args:
            retention: seconds to keep it; that of the limits if None.

        Returns:
            the description with `size` and `expires_at`.

        Raises:
            TooLarge: it would exceed the limits.
            Unavailable: the store cannot be written to.
        """

    @abstractmethod
    async def list(self, tenant: str) -> list[CheckpointInfo]:
        """The tenant's checkpoints, oldest first."""

    @abstractmethod
    async def get(self, tenant: str, name: str) -> CheckpointInfo:
        """Raises NotFound."""

    @abstractmethod
    def open(
        self, tenant: str, name: str
    ) -> AbstractAsyncContextManager[tuple[int, AsyncIterator[bytes]]]:
        """The size of a checkpoint's stream, and the stream, which later calls do not change.

        Raises:
            NotFound
            Unavailable: the store cannot be read.
        """

    @abstractmethod
    async def delete(self, tenant: str, name: str) -> None:
        """Remove a checkpoint. Raises NotFound."""
