"""What a person reads about a field that is wrong."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from kernelbroker.protocol.codec import decode_as, decode_operation
from kernelbroker.protocol.errors import ProtocolError
from kernelbroker.protocol.messages import Close, Execute, Open, Operation, Resume, SessionOptions
from kernelbroker.protocol.wrong_fields import PATTERNS, words_of
from msgspec import inspect

ID = "use letters, digits, `_`, `-` and `.`, at most 64, and no `.` at the beginning"
WRONG: list[tuple[dict[str, Any] | list[int], str]] = [
    ({"op": "open", "session_id": "a b"}, f"session_id: {ID}"),
    ({"op": "open", "session_id": ".hidden"}, f"session_id: {ID}"),
    ({"op": "open", "session_id": "a" * 65}, f"session_id: {ID}"),
    ({"op": "open", "session_id": 5}, "session_id: it must be a text or null, not a whole number"),
    (
        {"op": "open", "limits": {"network": "x"}},
        "limits.network: 'x' is not allowed; it can only be 'none'",
    ),
    (
        {"op": "open", "limits": {"memori": 1}},
        "limits: there is no field `memori`; did you mean `memory`?",
    ),
    ({"op": "open", "env": {"A": 1}}, "env[...]: it must be a text, not a whole number"),
    ({"op": "open", "on_expiry": "die"}, "on_expiry: there is no 'die'; there are: close, "),
    (
        {"op": "execute", "code": "1", "language": "ruby"},
        "language: there is no 'ruby'; there are: javascript, python, shell",
    ),
    ({"op": "execute"}, "the field `code` is missing"),
    ({"op": "execute", "code": "1", "timeout": -1}, "timeout: it must be more than 0"),
    (
        {"op": "execute", "code": "1", "timeout": "x"},
        "timeout: it must be a number or null, not a text",
    ),
    (
        {"op": "execute", "code": "1", "allow_stdin": 1},
        "allow_stdin: it must be true or false, not a whole number",
    ),
    ({"op": "close", "op_id": "x" * 65}, "op_id: it must have at most 64 characters"),
    ({"op": "close", "soon": True}, "there is no field `soon`; there are: "),
    (
        {"op": "nope"},
        "op: there is no 'nope'; there are: close, execute, interrupt, open, restart, resume, stdin",
    ),
    ({"code": "1"}, "the field `op` is missing"),
    ([1], "it must be an object, not a list"),
]


@pytest.mark.parametrize(("message", "words"), WRONG, ids=lambda value: str(value)[:60])
def test_a_wrong_field_is_told_in_words(message: object, words: str) -> None:
    """The field is named, with what it may be; no type of Python and no regular expression is shown."""
    with pytest.raises(ProtocolError) as caught:
        decode_operation(json.dumps(message))
    text = str(caught.value)
    assert text.startswith(words)
    for jargon in ("$", "^[", "regex", "`str`", "`int`", "Object", "enum", "Expected"):
        assert jargon not in text


def test_what_is_no_json_is_told_as_before() -> None:
    """The words are those of the parser."""
    with pytest.raises(ProtocolError, match="not JSON"):
        decode_as(b"{", SessionOptions)


def patterns(info: object, seen: set[int]) -> set[str]:
    """The regular expressions in a type."""
    if id(info) in seen:
        return set()
    seen.add(id(info))
    found = {info.pattern} if isinstance(info, inspect.StrType) and info.pattern else set()
    parts: list[object] = []
    if isinstance(info, inspect.StructType):
        parts = [field.type for field in info.fields]
    elif isinstance(info, inspect.UnionType):
        parts = list(info.types)
    elif isinstance(info, inspect.ListType):
        parts = [info.item_type]
    elif isinstance(info, inspect.DictType):
        parts = [info.key_type, info.value_type]
    return found.union(*(patterns(each, seen) for each in parts))


def test_each_regular_expression_has_words() -> None:
    """A pattern of the protocol that nobody has put into words would be no help."""
    found = patterns(inspect.type_info(Operation), set())
    assert found
    assert found <= set(PATTERNS)


@pytest.mark.parametrize("expected", [Open, Execute, Resume, Close, list[int], dict[str, int], int])
def test_any_error_has_words(expected: Any) -> None:
    """Nothing that msgspec refuses makes a second error."""
    for value in ({}, {"op": "x"}, {"a": 1}, [], ["x"], "x", 1, None, True, {"after": -1}):
        try:
            msgspec.convert(value, expected)
        except msgspec.ValidationError as error:
            assert words_of(error, expected)
