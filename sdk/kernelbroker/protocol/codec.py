"""Converts messages to JSON and back.

msgspec does most of the work. It refuses lone surrogates, which Python text can have and JSON escapes can
represent (RFC 8259, section 8.2), and which a cell can print. Messages with lone surrogates are encoded by
the standard library instead, as ASCII with escapes.
"""

from __future__ import annotations

import functools
import json
from typing import Any, TypeVar, overload

import msgspec

from .errors import ProtocolError
from .events import Event
from .messages import Operation, Reply
from .wrong_fields import words_of

T = TypeVar("T")

_encoder = msgspec.json.Encoder()


class _Head(msgspec.Struct):
    type: str


_INCOMING_TYPES = frozenset(cls.__struct_config__.tag for cls in (*Event.__args__, *Reply.__args__))


def encode(message: Any) -> bytes:
    """Return JSON in UTF-8. Never fails for text that Python can hold. NaN and infinities become null."""
    try:
        return _encoder.encode(message)
    except UnicodeEncodeError:
        value = msgspec.to_builtins(message)
    try:
        text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    except ValueError:  # msgspec writes null for what JSON has no number for
        value = json.loads(json.dumps(value), parse_constant=lambda _name: None)
        text = json.dumps(value, separators=(",", ":"))
    return text.encode("ascii")


def decode_as(data: bytes | str, type_: type[T]) -> T:
    """Decode JSON as a value of `type_`.

    Raises:
        ProtocolError: not JSON, or of another type; the message has the position.
    """
    value: T = _decode(data, type_)
    return value


@overload
def decode_json(data: bytes | str) -> Any: ...
@overload
def decode_json(data: bytes | str, type_: type[T]) -> T: ...
def decode_json(data: bytes | str, type_: Any = Any) -> Any:
    """Decode JSON as `msgspec.json.decode` does, and also if it has escapes of lone surrogates.

    Raises:
        msgspec.DecodeError: not JSON.
        msgspec.ValidationError: of another type.
    """
    try:
        return _decoder(type_).decode(data)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeError, RecursionError) as exc:
        try:
            return msgspec.convert(json.loads(data, parse_constant=_refuse), type_)
        except msgspec.ValidationError:
            raise
        except (ValueError, RecursionError):  # also UnicodeError, of a name of a field
            raise msgspec.DecodeError(str(exc)) from None


@functools.cache
def _decoder(type_: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_)


def decode_operation(data: bytes | str) -> Operation:
    """Decode a message of a client.

    Raises:
        ProtocolError: not an operation, or one with an unknown field.
    """
    operation: Operation = _decode(data, Operation)
    return operation


def decode_incoming(data: bytes | str) -> Event | Reply | None:
    """Decode a message of a broker: an event or a reply; None for an unknown type of a newer broker.

    Raises:
        ProtocolError: not JSON, or the fields do not match the type.
    """
    try:
        incoming: Event | Reply = _decode(data, Event | Reply)
        return incoming
    except ProtocolError:
        try:
            head: _Head = _decode(data, _Head)
        except ProtocolError:
            pass
        else:
            if head.type not in _INCOMING_TYPES:
                return None
        raise


def _decode(data: bytes | str, type_: Any) -> Any:
    try:
        return decode_json(data, type_)
    except msgspec.ValidationError as exc:
        raise ProtocolError(words_of(exc, type_)) from exc
    except msgspec.DecodeError as exc:
        raise ProtocolError(f"not JSON: {exc}") from exc


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")
