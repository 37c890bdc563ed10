"""The records of the journal: each is one change of the store.

Their tags and the order of their fields are the format on the disk. A new field goes to the end and has a
default; anything else needs a new `journal.VERSION`. JSON is kept as bytes, since msgpack cannot carry the
lone surrogates that user code can produce.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class SessionOpened(msgspec.Struct, array_like=True, frozen=True, tag=1):
    """A session. `options` is JSON, without the values of secrets."""

    key: str
    tenant: str
    session_id: str
    options: bytes
    opened_at: float
    client: str = ""
    user: str = ""


class SessionEnded(msgspec.Struct, array_like=True, frozen=True, tag=2):
    key: str
    reason: str
    at: float


class ExecutionCreated(msgspec.Struct, array_like=True, frozen=True, tag=3):
    """An execution under a number that is never used again. `request` is JSON, without secrets."""

    number: int
    key: str
    id: str
    request: bytes
    packages: bytes
    findings: bytes
    accepted_at: float
    allow_stdin: bool = False
    client: str = ""
    user: str = ""


class ExecutionBegun(msgspec.Struct, array_like=True, frozen=True, tag=4):
    """A sandbox may run the execution, and it may have come as far as this. A later record replaces it.

    `progress` is JSON, or empty if no other broker can go on with the execution.
    """

    number: int
    progress: bytes = b""


class EventAppended(msgspec.Struct, array_like=True, frozen=True, tag=5):
    """An event as JSON. `ended_at` is set if it is the result."""

    number: int
    seq: int
    json: bytes
    ended_at: float | None = None


class EntryPut(msgspec.Struct, array_like=True, frozen=True, tag=6):
    kind: str
    tenant: str
    name: str
    value: bytes
    until: float


class EntryDropped(msgspec.Struct, array_like=True, frozen=True, tag=7):
    kind: str
    tenant: str
    name: str


class SessionClosing(msgspec.Struct, array_like=True, frozen=True, tag=8):
    """The session ends when nothing runs or waits in it."""

    key: str
    reason: str


class SessionChanged(msgspec.Struct, array_like=True, frozen=True, tag=9):
    """New options of an open session, as in `SessionOpened`."""

    key: str
    options: bytes


class SessionEventAppended(msgspec.Struct, array_like=True, frozen=True, tag=10):
    """An event of a session as JSON. Those before `first` are forgotten."""

    key: str
    seq: int
    json: bytes
    first: int = 1


Record: TypeAlias = (
    SessionOpened
    | SessionChanged
    | SessionClosing
    | SessionEnded
    | SessionEventAppended
    | ExecutionCreated
    | ExecutionBegun
    | EventAppended
    | EntryPut
    | EntryDropped
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def encode_record(record: Record) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes | memoryview) -> Record:
    """Raises msgspec.DecodeError if it is no record of this version."""
    return _decoder.decode(data)
