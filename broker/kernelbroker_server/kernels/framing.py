"""Jupyter messages as WebSocket frames: the `v1.kernel.websocket.jupyter.org` subprotocol. No I/O.

A frame has the number of offsets (8 bytes, little endian), the offsets, the channel's name, the header,
the parent header, the metadata and the content, each at its offset, and then buffers. Source:
jupyter_server's documentation, "WebSocket kernel wire protocols". Frames are hostile: every field is
checked, and the content is parsed only on demand.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import ProtocolError

SUBPROTOCOL: Final = "v1.kernel.websocket.jupyter.org"

BROKER_SESSION: Final = "broker"
"""In the header of the cells that the broker's own clients run."""
INTERNAL_SESSION: Final = "broker-internal"
"""In the header of the broker's own requests. No client sees what the kernel answers to these."""

MAX_WEIGHT: Final = 24 * 1024**2
"""The greatest weight of a message that is parsed: the gateway's limit, and some structure."""
VALUE_BYTES: Final = 8
_MAX_QUOTES = 100_000
_MAX_OFFSETS = 64
_WORD = 8


class RequestHeader(msgspec.Struct):
    """The fields of a request's header that are used. An absent parent is an empty header.

    Clients may send anything in the others, and the kernel repeats it.
    """

    msg_id: str = ""
    msg_type: str = ""
    session: str = ""


class Header(RequestHeader):
    """The fields of the header of a kernel's message that are used."""

    date: str = ""


class Incoming(msgspec.Struct, frozen=True):
    """A message from the kernel.

    Attributes:
        parent_id, parent_session: the id of the request that it answers, and who has sent that.
        content: as JSON.
        frame: the whole frame.
    """

    channel: str
    header: Header
    parent_id: str
    metadata: bytes
    content: bytes
    parent_session: str = ""
    frame: bytes = b""

    @property
    def weight(self) -> int:
        """Bytes, plus a surcharge for each JSON value: `[],[],…` needs far more memory than its text.

        Commas in strings count as values, unless the message would be too heavy because of them.
        """
        return _weight(self.content)

    @property
    def metadata_weight(self) -> int:
        return _weight(self.metadata)

    def content_as(self, type_: type[Any]) -> Any:
        """Return the parsed content. Raises ProtocolError if it is malformed or too large."""
        if self.weight > MAX_WEIGHT:
            raise ProtocolError(f"a message of {len(self.content):,} bytes with too many values")
        return decode_as(self.content, type_)


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A message to the kernel.

    Attributes:
        internal: it is the broker's own request, see `INTERNAL_SESSION`.
        frame: the whole message as a client has made it, in place of all others.
    """

    channel: str
    msg_type: str
    content: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    msg_id: str = field(default_factory=lambda: uuid.uuid4().hex)
    internal: bool = False
    frame: bytes | None = None


METADATA_PART, CONTENT_PART = 3, 4
"""Indices in what `split_frame` returns."""


def encode_frame(message: Outgoing, session: str) -> bytes:
    if message.frame is not None:
        return message.frame
    header = {
        "msg_id": message.msg_id,
        "msg_type": message.msg_type,
        "session": INTERNAL_SESSION if message.internal else session,
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
    return join_parts(parts)


def join_parts(parts: Sequence[bytes]) -> bytes:
    """Return a frame of channel, header, parent header, metadata, content, and buffers."""
    count = len(parts) + 1
    offsets = accumulate(map(len, parts), initial=_WORD * (count + 1))
    return b"".join([struct.pack(f"<{count + 1}Q", count, *offsets), *parts])


def split_frame(frame: bytes) -> list[bytes]:
    """Return what `join_parts` has joined.

    Raises:
        ProtocolError: the frame is invalid.
    """
    ends = _offsets(frame)
    return [frame[start:end] for start, end in pairwise(ends)]


def _weight(data: bytes) -> int:
    size = len(data)
    weight = size + VALUE_BYTES * data.count(b",")
    return weight if weight <= MAX_WEIGHT else size + VALUE_BYTES * _commas(data)


def _commas(data: bytes) -> int:
    """Count the commas of a JSON text; those in strings only if there are too many strings to look at."""
    data = data.replace(rb"\\", b"").replace(rb"\"", b"")
    if data.count(b'"') > _MAX_QUOTES:
        return data.count(b",")
    return sum(outside.count(b",") for outside in data.split(b'"')[::2])


def decode_frame(frame: bytes | str) -> Incoming:
    """Decode a frame.

    Raises:
        ProtocolError: the frame is invalid.
    """
    if isinstance(frame, str):
        raise ProtocolError("a text frame; the subprotocol has binary frames only")
    channel, header, parent, metadata, content, end = _offsets(frame)[:6]
    try:
        channel_name = frame[channel:header].decode("ascii")
    except UnicodeDecodeError as exc:
        raise ProtocolError("a channel whose name is not ASCII") from exc
    request = decode_as(frame[parent:metadata], RequestHeader)
    return Incoming(
        channel=channel_name,
        header=decode_as(frame[header:parent], Header),
        parent_id=request.msg_id,
        metadata=frame[metadata:content],
        content=frame[content:end],
        parent_session=request.session,
        frame=frame,
    )


def _offsets(frame: bytes) -> tuple[int, ...]:
    count = int.from_bytes(frame[:_WORD], "little")
    if not 6 <= count <= _MAX_OFFSETS or len(frame) < _WORD * (count + 1):
        raise ProtocolError(f"a frame with {count} offsets")
    ends = struct.unpack_from(f"<{count}Q", frame, _WORD)
    if ends[0] != _WORD * (count + 1) or [*ends] != sorted(ends) or ends[-1] > len(frame):
        raise ProtocolError("a frame whose offsets do not fit")
    return ends
