"""The messages of E2B's environment daemon.

`messages.json` describes them: the definitions of E2B's public client `e2b` 2.63.0 (MIT, see
messages.LICENSE), as a protobuf FileDescriptorSet in JSON. Handlers use messages as dictionaries in the
JSON form of protobuf.
"""

from __future__ import annotations

import json
from functools import cache
from importlib.resources import files
from typing import Any

from google.protobuf import descriptor_pb2, json_format, timestamp_pb2
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass


class InvalidMessage(ValueError):
    """A message does not have its form."""


def decode(name: str, data: bytes, *, binary: bool) -> dict[str, Any]:
    """Decode a message. Absent fields are absent; fields that are not known are ignored.

    Raises:
        InvalidMessage
    """
    message = _type(name)()
    try:
        if binary:
            message.ParseFromString(data)
        else:
            json_format.Parse(
                data or b"{}", message, ignore_unknown_fields=True, max_recursion_depth=20
            )
    except (json_format.ParseError, DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidMessage(f"{name}: {exc}"[:500]) from exc
    fields: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return fields


def encode(name: str, fields: dict[str, Any], *, binary: bool) -> bytes:
    """Encode a message."""
    if not binary:
        return json.dumps(fields, separators=(",", ":")).encode()
    return json_format.ParseDict(fields, _type(name)()).SerializeToString()


@cache
def _pool() -> DescriptorPool:
    pool = DescriptorPool()
    described = descriptor_pb2.FileDescriptorSet()
    json_format.Parse(files(__package__).joinpath("messages.json").read_text(), described)
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    for each in described.file:
        pool.AddSerializedFile(each.SerializeToString())
    return pool


@cache
def _type(name: str) -> type[Message]:
    return GetMessageClass(_pool().FindMessageTypeByName(name))
