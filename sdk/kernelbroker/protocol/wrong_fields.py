"""Says in words which field of a message is wrong, and what it may be. No I/O.

The words are made of those of msgspec, whose errors name a path (`$.limits.memory`) and types of Python,
and of the type that was expected.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

IDENTIFIER_PATTERN = r"^[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}(?!\n)$"
PATTERNS = {
    IDENTIFIER_PATTERN: "use letters, digits, `_`, `-` and `.`, at most 64, and no `.` at the beginning",
}
"""What to tell, by the regular expression that a text must match."""

_AT = re.compile(r" - at (?:the key in )?`\$(?P<path>[^`]*)`$")
_EXPECTED = re.compile(r"Expected `(?P<wanted>[^`]+)`, got `(?P<got>[^`]+)`")
_BOUND = re.compile(r"Expected `(?P<kind>\w+)` (?P<of>of length )?(?P<sign>[<>]=?) (?P<bound>\S+)")
_KINDS = {
    "array": "a list",
    "bool": "true or false",
    "bytes": "base64",
    "datetime": "a time",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "a text",
}
_SIGNS = {"<": "less than", "<=": "at most", ">": "more than", ">=": "at least"}
_UNITS = {"array": "items", "object": "entries", "str": "characters"}
_MOST_NAMED = 40


def words_of(error: msgspec.ValidationError, expected: Any) -> str:
    """Return what is wrong, in one line for a person.

    Args:
        expected: the type that the value should have had.
    """
    text = str(error)
    at = _AT.search(text)
    path = at["path"].lstrip(".") if at else ""
    text = text[: at.start()] if at else text
    return f"{path}: {_fault(text, path, expected)}" if path else _fault(text, path, expected)


def _fault(text: str, path: str, expected: Any) -> str:
    if text.startswith("Expected `str` matching regex"):
        pattern = text.partition("'")[2].rpartition("'")[0].replace("\\\\", "\\")
        return PATTERNS.get(pattern, "the text has another form")
    if text.startswith(("Invalid enum value", "Invalid value")):
        value, values = text.partition("value ")[2], sorted(_values(expected, path))
        if len(values) == 1:
            return f"{value} is not allowed; it can only be '{values[0]}'"
        return f"there is no {value}; there {_listed(values)}"
    if text.startswith("Object contains unknown field"):
        name, known = text.split("`")[1], sorted(_fields(expected, path))
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean `{near[0]}`?" if near else f"there {_listed(known)}"
        return f"there is no field `{name}`; {hint}"
    if text.startswith("Object missing required field"):
        return f"the field `{text.split('`')[1]}` is missing"
    if match := _EXPECTED.fullmatch(text):
        wanted = " or ".join(_KINDS.get(each, each) for each in match["wanted"].split(" | "))
        return f"it must be {wanted}, not {_KINDS.get(match['got'], match['got'])}"
    if match := _BOUND.fullmatch(text):
        bound = f"{_SIGNS[match['sign']]} {match['bound'].removesuffix('.0')}"
        unit = _UNITS.get(match["kind"], "items")
        return f"it must have {bound} {unit}" if match["of"] else f"it must be {bound}"
    return text


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"are: {', '.join(names[:_MOST_NAMED])}{more}" if names else "are none"


def _values(expected: Any, path: str) -> set[str]:
    """The values that a field may have, or the tags of the messages that there are."""
    *parents, name = path.split(".")
    found: set[str] = set()
    for each in _at(_info(expected), parents):
        if isinstance(each, inspect.StructType) and each.tag_field == name:
            found.add(str(each.tag))
    for each in _at(_info(expected), [*parents, name]):
        if isinstance(each, inspect.LiteralType):
            found |= {str(value) for value in each.values if value is not None}
        elif isinstance(each, inspect.EnumType):
            found |= {str(member.value) for member in each.cls}
    return found


def _fields(expected: Any, path: str) -> set[str]:
    structs = (each for each in _at(_info(expected), path.split(".") if path else []))
    return {
        field.encode_name
        for each in structs
        if isinstance(each, inspect.StructType)
        for field in each.fields
    }


@cache
def _info(expected: Any) -> inspect.Type:
    return inspect.type_info(expected)


def _at(info: inspect.Type, steps: list[str]) -> Iterator[inspect.Type]:
    """The types that there may be at a path."""
    match info:
        case inspect.UnionType(types=types):
            for each in types:
                yield from _at(each, steps)
        case inspect.Metadata(type=inner):
            yield from _at(inner, steps)
        case _ if not steps:
            yield info
        case inspect.StructType(fields=fields):
            name, *rest = steps
            bare = name.partition("[")[0]
            for field in fields:
                if field.encode_name == bare:
                    yield from _inside(field.type, name.count("["), rest)


def _inside(info: inspect.Type, depth: int, steps: list[str]) -> Iterator[inspect.Type]:
    """The types in so many lists or mappings."""
    if not depth:
        yield from _at(info, steps)
        return
    for each in _at(info, []):
        match each:
            case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
                yield from _inside(inner, depth - 1, steps)
            case inspect.DictType(value_type=inner):
                yield from _inside(inner, depth - 1, steps)
