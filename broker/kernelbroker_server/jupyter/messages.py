"""The messages on a `channels` WebSocket, in both forms that Jupyter's clients use. No I/O.

With the subprotocol `v1.kernel.websocket.jupyter.org` a message is a frame as in `kernels.framing`.
Without it a message is JSON in a text frame, or, if it has buffers, a binary frame: the number of parts
and the offset of each (4 bytes, big endian), the JSON, and the buffers.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from typing import Any, TypeAlias

import msgspec
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.errors import ProtocolError

from ..kernels.framing import RequestHeader, join_parts, split_frame

_OFFSET = 4
_MAX_PARTS = 1000
_EMPTY = msgspec.Raw(b"{}")

WireMessage: TypeAlias = str | bytes


@dataclass(frozen=True, slots=True)
class ClientMessage:
    """A message of a client.

    Attributes:
        raw_header: the header as the client has sent it.
        frame: the message as a frame of the subprotocol.
    """

    channel: str
    header: RequestHeader
    raw_header: bytes
    frame: bytes


class _Legacy(msgspec.Struct):
    header: msgspec.Raw
    channel: str = "shell"
    parent_header: msgspec.Raw = _EMPTY
    metadata: msgspec.Raw = _EMPTY
    content: msgspec.Raw = _EMPTY


def decode_v1(message: WireMessage) -> ClientMessage:
    """Decode a message of the subprotocol. Raises ProtocolError."""
    if isinstance(message, str):
        raise ProtocolError("the subprotocol has binary frames only")
    return _message(split_frame(message))


def decode_legacy(message: WireMessage) -> ClientMessage:
    """Decode a message of a client without the subprotocol. Raises ProtocolError."""
    text, buffers = (message, []) if isinstance(message, str) else _with_buffers(message)
    found = decode_as(text, _Legacy)
    fields = (found.header, found.parent_header, found.metadata, found.content)
    return _message([found.channel.encode(errors="replace"), *map(bytes, fields), *buffers])


def _message(parts: Sequence[bytes]) -> ClientMessage:
    header = decode_as(parts[1], RequestHeader)
    if not (header.msg_id and header.msg_type):
        raise ProtocolError("a message without id or type")
    channel = parts[0].decode(errors="replace")
    return ClientMessage(channel, header, parts[1], join_parts(parts))


def _with_buffers(data: bytes) -> tuple[bytes, list[bytes]]:
    count = int.from_bytes(data[:_OFFSET], "big")
    if not 1 <= count <= _MAX_PARTS or len(data) < _OFFSET * (count + 1):
        raise ProtocolError(f"a message of {count} parts")
    offsets = [*struct.unpack_from(f"!{count}I", data, _OFFSET), len(data)]
    if offsets != sorted(offsets) or offsets[0] < _OFFSET * (count + 1):
        raise ProtocolError("a message whose offsets do not fit")
    text, *buffers = (data[start:end] for start, end in pairwise(offsets))
    return text, buffers


def encode_legacy(frame: bytes, *, only_text: bool = False) -> WireMessage:
    """Return a frame of the subprotocol for a client without it.

    Args:
        only_text: leave out the buffers.
    """
    channel, header, parent, metadata, content, *buffers = split_frame(frame)
    head = decode_as(header, RequestHeader)
    fields = {
        b'{"channel":': encode(channel.decode(errors="replace")),
        b',"header":': header,
        b',"msg_id":': encode(head.msg_id),
        b',"msg_type":': encode(head.msg_type),
        b',"parent_header":': parent,
        b',"metadata":': metadata,
        b',"content":': content,
    }
    text = b"".join(piece for field in fields.items() for piece in field) + b',"buffers":[]}'
    if not buffers or only_text:
        return text.decode(errors="replace")
    parts = [text, *buffers]
    starts = accumulate(map(len, parts[:-1]), initial=_OFFSET * (len(parts) + 1))
    return b"".join([struct.pack(f"!{len(parts) + 1}I", len(parts), *starts), *parts])


def made(
    channel: str,
    msg_type: str,
    content: dict[str, Any],
    *,
    session: str,
    parent: bytes = b"{}",
    metadata: dict[str, Any] | None = None,
) -> bytes:
    """Return a message of the broker's own, in the name of a kernel.

    Args:
        session: the kernel's, from the headers of its messages.
        parent: the header of the request that it answers.
    """
    header = {
        "msg_id": uuid.uuid4().hex,
        "msg_type": msg_type,
        "username": "",
        "session": session,
        "date": datetime.now(UTC).isoformat(),
        "version": "5.4",
    }
    return join_parts(
        [channel.encode(), encode(header), parent, encode(metadata or {}), encode(content)]
    )


def status(state: str, session: str, parent: bytes = b"{}") -> bytes:
    """Return a `status` message."""
    return made("iopub", "status", {"execution_state": state}, session=session, parent=parent)
