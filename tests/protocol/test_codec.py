"""Messages to JSON and back, also hostile ones."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.codec import (
    decode_as,
    decode_incoming,
    decode_json,
    decode_operation,
    encode,
)
from kernelbroker.protocol.errors import ProtocolError
from kernelbroker.protocol.events import Clear, Display, ErrorDetail, Event, Result, Stdout
from kernelbroker.protocol.messages import (
    Closed,
    Execute,
    ExecutionRequest,
    Interrupt,
    Open,
    SessionOptions,
)

from tests.support.generated import any_json, any_text, repeatable


def strict(data: bytes) -> Any:
    """Parse JSON exactly as RFC 8259 defines it."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(data, parse_constant=refuse)


def with_nulls(value: Any) -> Any:
    """The value as JSON can express it: null for NaN and infinities."""
    match value:
        case float() if not math.isfinite(value):
            return None
        case list():
            return [with_nulls(item) for item in value]
        case dict():
            return {key: with_nulls(item) for key, item in value.items()}
    return value


@repeatable
@given(any_text)
def test_text_round_trip(text: str) -> None:
    """Any text that Python can hold is unchanged, also lone surrogates."""
    assert decode_incoming(encode(Stdout(content=text))) == Stdout(content=text)


@repeatable
@given(any_json, any_text)
def test_any_event_is_valid_json(value: Any, text: str) -> None:
    """An event with any value is valid JSON, with null for NaN and infinities."""
    written = strict(encode(Display(data={"value": value, "text": text})))
    assert written["data"] == {"value": with_nulls(value), "text": text}


@given(any_json, any_text)
@repeatable
def test_any_value_is_decoded_again(value: Any, text: str) -> None:
    """What `encode` writes is read by `decode_json`, also with lone surrogates in values and names."""
    written = encode({"value": value, text: text})
    assert decode_json(written) == json.loads(written)


def test_what_is_no_json_is_refused() -> None:
    """Neither cut JSON, nor deep JSON, nor constants of JavaScript, nor another type."""
    for data in (b'"\\udcff', b"[" * 100_000, b'["\\udcff", NaN]', b"\xff"):
        with pytest.raises(msgspec.DecodeError):
            decode_json(data)
    with pytest.raises(msgspec.ValidationError):
        decode_json(b'{"a": "x"}', dict[str, int])
    with pytest.raises(msgspec.DecodeError):
        decode_json(b'{"\\udcff": "a"}', dict[str, int])


def test_not_a_number_beside_a_lone_surrogate() -> None:
    """The encoder for lone surrogates writes null for NaN as the other one does."""
    event = Display(data={"a": [math.nan, math.inf, -math.inf, "NaN"], "b": "\ud800"})
    assert strict(encode(event))["data"] == {"a": [None, None, None, "NaN"], "b": "\ud800"}


@pytest.mark.parametrize(
    "event",
    [
        Clear(wait=True, execution_id="e", seq=3),
        Result(
            success=False, error_detail=ErrorDetail(name="E", value="\udfff", cause="exception")
        ),
        Result(success=True, return_value={"n": 2**70, "text": "\ud83d"}),
    ],
)
def test_events_round_trip(event: Event) -> None:
    """A decoded event equals the encoded one."""
    assert decode_incoming(encode(event)) == event


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"op":"execute","code":"1","tiemout":3}', "tiemout"),
        (b'{"op":"interrupt","force":true}', "force"),
        (b'{"op":"open","session":"x"}', "session"),
    ],
)
def test_unknown_fields_of_operations_are_refused(data: bytes, field: str) -> None:
    """The broker refuses an unknown field and names it."""
    with pytest.raises(ProtocolError, match=field):
        decode_operation(data)


def test_unknown_fields_of_events_are_ignored() -> None:
    """A client ignores an unknown field."""
    event = decode_incoming(b'{"type":"stdout","content":"x","colour":"red"}')
    assert event == Stdout(content="x")


@pytest.mark.parametrize("rest", ["1", '"\\ud800"', "[[[]]]", "1e9"])
def test_unknown_types_are_ignored(rest: str) -> None:
    """A client ignores a message of an unknown type."""
    assert decode_incoming(f'{{"type":"aurora","x":{rest}}}') is None


def test_invalid_fields_of_a_known_type_are_an_error() -> None:
    """A known type with invalid fields is an error."""
    with pytest.raises(ProtocolError, match="content"):
        decode_incoming(b'{"type":"stdout","content":3}')


def test_replies_are_decoded() -> None:
    """One function decodes replies and events."""
    assert decode_incoming(b'{"type":"closed","reason":"done"}') == Closed(reason="done")


DEEP = 100_000


@pytest.mark.parametrize(
    "data",
    [
        b"[" * DEEP,
        b'{"op":"open","metadata":' + b'{"a":' * DEEP,
        b'{"op":"open","metadata":{"a":' + b"[" * DEEP + b"]" * DEEP + b"}}",
        b'{"type":"display","data":{"a":' + b"[" * DEEP + b"]" * DEEP + b"}}",
        b'{"type":"aurora","data":' + b"[" * DEEP + b"]" * DEEP + b"}",
        b'{"type":"display","data":{"b":"\\ud800","a":' + b"[" * DEEP + b"]" * DEEP + b"}}",
    ],
)
def test_deep_nesting_is_a_protocol_error(data: bytes) -> None:
    """A message that is nested too deeply raises ProtocolError, never RecursionError."""
    for decode in (decode_operation, decode_incoming):
        with pytest.raises(ProtocolError):
            decode(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"{", b"hello", b"\xff\xfe", b'"\xed\xa0"', b'{"op":', "\ud800", b"[]", b"{}"],
)
def test_invalid_operations_are_protocol_errors(data: bytes | str) -> None:
    """Bytes that are not JSON, or not an operation, raise ProtocolError."""
    with pytest.raises(ProtocolError):
        decode_operation(data)


@repeatable
@given(st.binary(max_size=40) | any_json.map(lambda value: json.dumps(value).encode()))
def test_decoders_raise_only_protocol_errors(data: bytes) -> None:
    """The decoders raise no other error for any bytes."""
    for decode in (decode_operation, decode_incoming):
        with contextlib.suppress(ProtocolError):
            decode(data)


@pytest.mark.parametrize("number", ["0", "-1", "NaN", "-Infinity", "1e999", '"3"', "null"])
def test_timeouts_are_finite_and_positive(number: str) -> None:
    """A timeout is a finite number above zero, or absent."""
    data = f'{{"code":"1","timeout":{number}}}'
    if number == "null":
        assert decode_as(data, ExecutionRequest).timeout is None
        return
    with pytest.raises(ProtocolError):
        decode_as(data, ExecutionRequest)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_lifetimes_are_finite(number: str) -> None:
    """The lifetime of a session must be finite."""
    with pytest.raises(ProtocolError):
        decode_as(f'{{"max_lifetime":{number}}}', SessionOptions)


@pytest.mark.parametrize(
    "identifier", ["", "a" * 65, "a/b", "a\n", "\n", "é", ".", "..", ".hidden", "a b", "\ud800"]
)
def test_unsafe_identifiers_are_refused(identifier: str) -> None:
    """An id that is unsafe in a path, a header or a log line is refused."""
    for field in ("execution_id", "session_id"):
        op = "execute" if field == "execution_id" else "open"
        data = json.dumps({"op": op, "code": "1", field: identifier})
        if op == "open":
            data = json.dumps({"op": op, field: identifier})
        with pytest.raises(ProtocolError):
            decode_operation(data)


@pytest.mark.parametrize("identifier", ["a", "A-1_b.c", "a..", "-", "0" * 64])
def test_safe_identifiers_are_accepted(identifier: str) -> None:
    """An id has up to 64 letters, digits, `_`, `.` and `-`."""
    operation = decode_operation(
        json.dumps({"op": "execute", "code": "", "execution_id": identifier})
    )
    assert operation == Execute(code="", execution_id=identifier)


def test_operations_have_the_documented_defaults() -> None:
    """An operation may be text or bytes, and has the documented defaults."""
    for data in ('{"op":"open"}', b'{"op":"open"}'):
        assert decode_operation(data) == Open(template="default")
    assert decode_operation(b'{"op":"interrupt"}') == Interrupt()
    execute = decode_operation(b'{"op":"execute","code":"\\ud800"}')
    assert isinstance(execute, Execute)
    assert (execute.code, execute.preview_rows, execute.on_error) == ("\ud800", 10, None)
    assert (execute.on_disconnect, execute.allow_stdin) == ("continue", False)
