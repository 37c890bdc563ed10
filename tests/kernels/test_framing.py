"""Frames: those of jupyter_server, and hostile ones."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.errors import ProtocolError
from kernelbroker_server.kernels.framing import Outgoing, decode_frame, encode_frame

from tests.support.gateway import raw_frame
from tests.support.generated import repeatable, tag_text

# serialize_msg_to_ws_v1(parts, "iopub") of jupyter_server 2.21.1, with one buffer.
FROM_JUPYTER_SERVER = bytes.fromhex(
    "0700000000000000400000000000000045000000000000009500000000000000c200000000000000c4000000000000"
    "00e200000000000000e900000000000000696f7075627b226d73675f6964223a226d2d31222c226d73675f74797065"
    "223a2273747265616d222c2264617465223a22323032362d31312d32315431303a30303a30305a222c227365737369"
    "6f6e223a2273227d7b226d73675f6964223a22702d31222c226d73675f74797065223a22657865637574655f726571"
    "75657374227d7b7d7b226e616d65223a227374646f7574222c2274657874223a2268c3a9227d00627566666572"
)


def read_as_jupyter_server(message: bytes) -> tuple[str, list[bytes]]:
    """The channel and the parts, as jupyter_server's deserialize_msg_from_ws_v1 returns them."""
    count = int.from_bytes(message[:8], "little")
    offsets = [int.from_bytes(message[8 * i : 8 * (i + 1)], "little") for i in range(1, count + 1)]
    assert offsets[-1] == len(message)
    channel = message[offsets[0] : offsets[1]].decode()
    return channel, [message[offsets[i] : offsets[i + 1]] for i in range(1, count - 1)]


def test_decodes_frames_of_jupyter_server() -> None:
    """A frame made by jupyter_server is decoded; its buffers are ignored."""
    message = decode_frame(FROM_JUPYTER_SERVER)
    assert (message.channel, message.parent_id) == ("iopub", "p-1")
    assert (message.header.msg_id, message.header.msg_type) == ("m-1", "stream")
    assert message.header.date == "2026-11-21T10:00:00Z"
    assert message.content_as(dict) == {"name": "stdout", "text": "hé"}


@repeatable
@given(tag_text, st.dictionaries(tag_text, tag_text, max_size=3))
def test_jupyter_server_decodes_our_frames(code: str, metadata: dict[str, str]) -> None:
    """jupyter_server's decoder and ours both decode the frames that we encode."""
    sent = Outgoing("shell", "execute_request", {"code": code}, metadata)
    frame = encode_frame(sent, "broker")
    channel, parts = read_as_jupyter_server(frame)
    header, parent, found, content = map(json.loads, parts)
    assert (channel, parent, found, content) == ("shell", {}, metadata, {"code": code})
    assert (header["msg_id"], header["msg_type"]) == (sent.msg_id, "execute_request")
    assert header["session"] == "broker"
    own = decode_frame(frame)
    assert (own.channel, own.header.msg_id, own.parent_id) == ("shell", sent.msg_id, "")
    assert own.content_as(dict) == {"code": code}


@repeatable
@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_an_error(frame: bytes) -> None:
    """Any bytes are a message or raise ProtocolError."""
    with contextlib.suppress(ProtocolError):
        decode_frame(frame)


@repeatable
@given(st.integers(0, len(FROM_JUPYTER_SERVER) - 1), st.integers(0, 255))
def test_corrupted_frames(position: int, byte: int) -> None:
    """A frame with one byte changed is a message or a ProtocolError."""
    frame = bytearray(FROM_JUPYTER_SERVER)
    frame[position] = byte
    try:
        message = decode_frame(bytes(frame))
    except ProtocolError:
        return
    assert len(message.content) <= len(frame)


@repeatable
@given(st.integers(0, len(FROM_JUPYTER_SERVER) - 1))
def test_truncated_frames(length: int) -> None:
    """A truncated frame is never a message."""
    with pytest.raises(ProtocolError):
        decode_frame(FROM_JUPYTER_SERVER[:length])


def words(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, "little") for number in numbers)


@pytest.mark.parametrize(
    "frame",
    [
        "text",
        b"",
        b"\x07",
        words(0),
        words(2**63, 0),
        words(5, 48, 48, 48, 48, 48),
        words(65, *[8 * 66] * 65),
        words(6, 56, 56, 56, 56, 56, 2**64 - 1),
        words(6, 56, 57, 56, 56, 56, 56) + b"x",
        words(6, 0, 0, 0, 0, 0, 0),
        raw_frame([b"\xff", b"{}", b"{}", b"{}", b"{}"]),
        raw_frame([b"shell", b"[]", b"{}", b"{}", b"{}"]),
        raw_frame([b"shell", b"{}", b"null", b"{}", b"{}"]),
        raw_frame([b"shell", b'{"msg_id":3}', b"{}", b"{}", b"{}"]),
        raw_frame([b"shell", b"[" * 100_000, b"{}", b"{}", b"{}"]),
        raw_frame([b"shell", b'{"\\ud800":1', b"{}", b"{}", b"{}"]),
    ],
)
def test_hostile_frames(frame: bytes | str) -> None:
    """Wrong offsets and invalid headers raise ProtocolError."""
    with pytest.raises(ProtocolError):
        decode_frame(frame)


@pytest.mark.parametrize("content", [b"", b"[", b"[]", b"\xff", b"[" * 100_000, b"NaN"])
def test_content_is_parsed_on_demand(content: bytes) -> None:
    """Content of another shape raises ProtocolError when it is parsed."""
    message = decode_frame(raw_frame([b"iopub", b"{}", b"{}", b"", content]))
    with pytest.raises(ProtocolError):
        message.content_as(dict)
