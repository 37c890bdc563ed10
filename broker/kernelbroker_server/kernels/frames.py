"""The streams of a sandbox's processes and watches, frame by frame; see `contract.PROCESSES_PATH`.

The gateway is untrusted: a frame's size is bounded.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator
from struct import Struct
from typing import NamedTuple

from .transfer import GatewayRequest, TransferFailed

MAX_FRAME_BYTES = 1024**2
_HEAD = Struct("!cI")


class Frame(NamedTuple):
    """One frame: its kind, and its content."""

    kind: bytes
    content: bytes


async def frames(answered: GatewayRequest) -> AsyncGenerator[Frame, None]:
    """Yield the frames of an answer as they come. The consumer pulls: others wait in the sandbox.

    Raises:
        TransferFailed: the stream broke off in a frame, or has one that is too large.
    """
    gathered = bytearray()
    async with contextlib.aclosing(answered.chunks()) as chunks:
        async for chunk in chunks:
            gathered += chunk
            offset = 0
            while len(gathered) - offset >= _HEAD.size:
                kind, size = _HEAD.unpack_from(gathered, offset)
                if size > MAX_FRAME_BYTES:
                    raise TransferFailed("the sandbox sent a frame that is too large")
                start = offset + _HEAD.size
                if len(gathered) - start < size:
                    break
                offset = start + size
                yield Frame(kind, bytes(gathered[start:offset]))
            del gathered[:offset]
    if gathered:
        raise TransferFailed("the sandbox's stream broke off")
