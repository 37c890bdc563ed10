"""Jupyter messages as WebSocket frames: the `v1.kernel.websocket.jupyter.org` subprotocol. No I/O.

A frame is: the number of offsets (8 bytes, little endian), the offsets, then the channel's name, the
header, the parent header, the metadata and the content, each beginning at its offset, then buffers.
Source: jupyter_server's documentation, "WebSocket kernel wire protocols". What comes in is hostile:
every field is checked, and content is parsed only by those who want it.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import ProtocolError

SUBPROTOCOL: Final = "v1.kernel.websocket.jupyter.org"

MAX_WEIGHT: Final = 24 * 1024**2
"""Of a message that is parsed: the largest that the gateway passes on, with some room for structure."""
_VALUE_BYTES = 8
_MAX_OFFSETS = 64
_WORD = 8


class Header(msgspec.Struct):
    """The part of a Jupyter header that matters here. An absent parent is an empty header."""

    msg_id: str = ""
    msg_type: str = ""
    date: str = ""


@dataclass(frozen=True, slots=True)
class Incoming:
    """A message from the kernel: where it came from, what it answers, and its content as JSON bytes."""

    channel: str
    header: Header
    parent_id: str
    metadata: bytes
    content: bytes

    @property
    def weight(self) -> int:
        """Bytes, with a surcharge for each value: `[],[],…` takes far more memory than text does."""
        return len(self.content) + _VALUE_BYTES * self.content.count(b",")

    def content_as(self, type_: type[Any]) -> Any:
        """The content, parsed. Raises ProtocolError where it is not of that shape, or too heavy."""
        if self.weight > MAX_WEIGHT:
            raise ProtocolError(f"a message of {len(self.content):,} bytes with too many values")
        return decode_as(self.content, type_)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to the kernel."""

    channel: str
    msg_type: str
    content: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    msg_id: str = field(default_factory=lambda: uuid.uuid4().hex)


def encode_frame(message: Outgoing, session: str) -> bytes:
    header = {
        "msg_id": message.msg_id,
        "msg_type": message.msg_type,
        "session": session,
        "username": "",
        "date": "",
        "version": "5.4",
    }
    parts = [
        message.channel.encode(),
        encode(header),
        b"{}",
        encode(message.metadata),
        encode(message.content),
    ]
    offset = _WORD * (len(parts) + 2)
    offsets = [offset]
    for part in parts:
        offset += len(part)
        offsets.append(offset)
    words = b"".join(word.to_bytes(_WORD, "little") for word in (len(offsets), *offsets))
    return words + b"".join(parts)


def decode_frame(frame: bytes | str) -> Incoming:
    """A frame as a message.

    Raises:
        ProtocolError: it is not one.
    """
    if isinstance(frame, str):
        raise ProtocolError("a text frame where the subprotocol has binary ones")
    count = int.from_bytes(frame[:_WORD], "little")
    if not 6 <= count <= _MAX_OFFSETS or len(frame) < _WORD * (count + 1):
        raise ProtocolError(f"a frame with {count} offsets")
    ends = [
        int.from_bytes(frame[start : start + _WORD], "little")
        for start in range(_WORD, _WORD * (count + 1), _WORD)
    ]
    if ends[0] != _WORD * (count + 1) or ends != sorted(ends) or ends[-1] > len(frame):
        raise ProtocolError("a frame whose offsets do not fit")
    channel, header, parent, metadata, content = (frame[ends[i] : ends[i + 1]] for i in range(5))
    try:
        channel_name = channel.decode("ascii")
    except UnicodeDecodeError as exc:
        raise ProtocolError("a channel whose name is not ASCII") from exc
    return Incoming(
        channel=channel_name,
        header=decode_as(header, Header),
        parent_id=decode_as(parent, Header).msg_id,
        metadata=metadata,
        content=content,
    )
