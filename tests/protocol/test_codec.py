"""Messages to JSON and back, with what is hostile on the way."""

from __future__ import annotations

import contextlib
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.codec import decode_as, decode_incoming, decode_operation, encode
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
    """As a reader who takes RFC 8259 at its word."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(data, parse_constant=refuse)


def with_nulls(value: Any) -> Any:
    """What JSON can say of a value: null for NaN and infinities."""
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
    """Any text that Python can hold arrives as it was, lone surrogates too."""
    assert decode_incoming(encode(Stdout(content=text))) == Stdout(content=text)


@repeatable
@given(any_json, any_text)
def test_json_is_always_json(value: Any, text: str) -> None:
    """Whatever value an event carries, what is written is JSON, with null for NaN and infinities."""
    written = strict(encode(Display(data={"value": value, "text": text})))
    assert written["data"] == {"value": with_nulls(value), "text": text}


def test_not_a_number_beside_a_lone_surrogate() -> None:
    """The slower path for lone surrogates writes null for NaN as the fast one does."""
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
    """An event is read as it was written."""
    assert decode_incoming(encode(event)) == event


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b'{"op":"execute","code":"1","tiemout":3}', "tiemout"),
        (b'{"op":"interrupt","force":true}', "force"),
        (b'{"op":"open","session":"x"}', "session"),
    ],
)
def test_unknown_field_of_an_operation(data: bytes, field: str) -> None:
    """The broker refuses a field that it does not know, by its name."""
    with pytest.raises(ProtocolError, match=field):
        decode_operation(data)


def test_unknown_field_of_an_event() -> None:
    """A client ignores a field that it does not know."""
    event = decode_incoming(b'{"type":"stdout","content":"x","colour":"red"}')
    assert event == Stdout(content="x")


@pytest.mark.parametrize("rest", ["1", '"\\ud800"', "[[[]]]", "1e9"])
def test_unknown_type(rest: str) -> None:
    """A client ignores a type that it does not know, whatever it carries."""
    assert decode_incoming(f'{{"type":"aurora","x":{rest}}}') is None


def test_known_type_of_the_wrong_shape() -> None:
    """A known type with fields that do not fit is an error, not something to ignore."""
    with pytest.raises(ProtocolError, match="content"):
        decode_incoming(b'{"type":"stdout","content":3}')


def test_replies() -> None:
    """Replies and events come through the same door."""
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
def test_deep_nesting(data: bytes) -> None:
    """What nests too deep is a ProtocolError for everyone, never a RecursionError."""
    for decode in (decode_operation, decode_incoming):
        with pytest.raises(ProtocolError):
            decode(data)


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"{", b"hello", b"\xff\xfe", b'"\xed\xa0"', b'{"op":', "\ud800", b"[]", b"{}"],
)
def test_not_an_operation(data: bytes | str) -> None:
    """What is not JSON, or not an operation, is a ProtocolError."""
    with pytest.raises(ProtocolError):
        decode_operation(data)


@repeatable
@given(st.binary(max_size=40) | any_json.map(lambda value: json.dumps(value).encode()))
def test_nothing_but_protocol_errors(data: bytes) -> None:
    """No bytes make the decoders raise anything else."""
    for decode in (decode_operation, decode_incoming):
        with contextlib.suppress(ProtocolError):
            decode(data)


@pytest.mark.parametrize("number", ["0", "-1", "NaN", "-Infinity", "1e999", '"3"', "null"])
def test_durations(number: str) -> None:
    """A timeout is a finite number above zero, or absent."""
    data = f'{{"code":"1","timeout":{number}}}'
    if number == "null":
        assert decode_as(data, ExecutionRequest).timeout is None
        return
    with pytest.raises(ProtocolError):
        decode_as(data, ExecutionRequest)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_lifetimes(number: str) -> None:
    """A session's lifetime cannot be made endless."""
    with pytest.raises(ProtocolError):
        decode_as(f'{{"max_lifetime":{number}}}', SessionOptions)


@pytest.mark.parametrize(
    "identifier", ["", "a" * 65, "a/b", "a\n", "\n", "é", ".", "..", ".hidden", "a b", "\ud800"]
)
def test_identifiers_refused(identifier: str) -> None:
    """An id that could lead elsewhere in a path, or break a header or a log line, is refused."""
    for field in ("execution_id", "session_id"):
        op = "execute" if field == "execution_id" else "open"
        data = json.dumps({"op": op, "code": "1", field: identifier})
        if op == "open":
            data = json.dumps({"op": op, field: identifier})
        with pytest.raises(ProtocolError):
            decode_operation(data)


@pytest.mark.parametrize("identifier", ["a", "A-1_b.c", "a..", "-", "0" * 64])
def test_identifiers_accepted(identifier: str) -> None:
    """Letters, digits, and `_ . -`, up to 64 of them."""
    operation = decode_operation(
        json.dumps({"op": "execute", "code": "", "execution_id": identifier})
    )
    assert operation == Execute(code="", execution_id=identifier)


def test_operations() -> None:
    """An operation may be text or bytes, and its defaults are the documented ones."""
    for data in ('{"op":"open"}', b'{"op":"open"}'):
        assert decode_operation(data) == Open(template="default")
    assert decode_operation(b'{"op":"interrupt"}') == Interrupt()
    execute = decode_operation(b'{"op":"execute","code":"\\ud800"}')
    assert isinstance(execute, Execute)
    assert (execute.code, execute.preview_rows, execute.on_error) == ("\ud800", 10, "rollback")
    assert (execute.on_disconnect, execute.allow_stdin) == ("continue", False)
