"""Checks arguments that may be any JSON against the signature of a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .errors import Refused

_KINDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "str": ("a text", lambda value: isinstance(value, str)),
    "int": ("a whole number", lambda value: type(value) is int and abs(value) < 2**31),
    "bool": ("true or false", lambda value: isinstance(value, bool)),
    "str | bool": ("a text, or true or false", lambda value: isinstance(value, str | bool)),
    "float": ("a number", lambda value: type(value) in (int, float)),
    "list[str]": (
        "a list of texts",
        lambda value: isinstance(value, list) and all(isinstance(each, str) for each in value),
    ),
}


def checked(function: Callable[..., Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters, if they are those of the function. Raises Refused."""
    expected = inspect.signature(function).parameters
    for name, value in parameters.items():
        if name not in expected:
            known = ", ".join(expected)
            raise Refused(
                "bad_request", f"there is no parameter {name[:100]!r}; there are: {known}"
            )
        kind, optional, _ = str(expected[name].annotation).partition(" | None")
        if value is None and optional:
            continue
        what, is_valid = _KINDS[kind]
        if not is_valid(value):
            raise Refused("bad_request", f"{name} must be {what}")
    for name, parameter in expected.items():
        if parameter.default is parameter.empty and name not in parameters:
            raise Refused("bad_request", f"the parameter {name!r} is missing")
    return parameters
