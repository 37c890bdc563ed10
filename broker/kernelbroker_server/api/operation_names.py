"""Which operation of a WebSocket an answer is for."""

from __future__ import annotations

import msgspec
from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.errors import ProtocolError
from kernelbroker.protocol.messages import Operation


class Echo(msgspec.Struct):
    """The fields of a malformed operation that tell the client which operation an error answers."""

    op: str | None = None
    op_id: str | None = None
    execution_id: str | None = None


def echo(message: str | bytes) -> Echo:
    try:
        return decode_as(message, Echo)
    except ProtocolError:
        return Echo()


def name_of(operation: Operation) -> str:
    return str(type(operation).__struct_config__.tag)
