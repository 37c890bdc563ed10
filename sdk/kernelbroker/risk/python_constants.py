"""Operations on constants, done as Python would, within bounds. None means that the result is unknown."""

from __future__ import annotations

import ast
import base64
import codecs
import operator
import posixpath
import re
import shlex
from collections.abc import Callable
from typing import Any

_MAX_CHARS = 10_000
_MAX_WORK = 1_000_000
_CODECS = {"utf-8", "utf8", "ascii", "latin-1", "rot13", "rot_13", "hex", "base64"}
_METHODS = {"decode", "encode", "join", "lower", "replace", "split", "strip", "upper"}
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Mod: operator.mod, ast.Div: posixpath.join,
}  # fmt: skip


def fold(function: Callable[..., Any] | None, *args: Any) -> Any:
    """The result of a function of known constants, if it is a constant of moderate size."""
    if function is None or None in args or sum(map(_size, args)) > _MAX_WORK:
        return None
    try:
        made = function(*args)
    except (TypeError, ValueError, LookupError, AttributeError):
        return None
    made = tuple(made) if isinstance(made, list) else made
    if isinstance(made, str | bytes | tuple):
        return made if len(made) <= _MAX_CHARS else None
    return made if isinstance(made, int) else None


def operate(node: ast.operator, left: Any, right: Any) -> Any:
    """`left operator right`; `/` joins paths, and a list with an unknown one stays a list."""
    if right is None and isinstance(left, tuple) and isinstance(node, ast.Add):
        return (*left, None)
    if isinstance(node, ast.Mod) and re.search(r"%[^%srdx]", str(left)):
        return None  # a width makes text of any length
    return fold(_OPERATORS.get(type(node)), left, right)


def join(*parts: Any) -> Any:
    """The text of an f-string."""
    return None if None in parts else fold("".join, tuple(map(str, parts)))


def call_method(value: Any, name: str, *args: Any) -> Any:
    """`value.name(*args)` for some methods of text and bytes."""
    if name in ("expanduser", "resolve", "absolute"):
        return value
    if name not in _METHODS or not isinstance(value, str | bytes) or None in args:
        return None
    if name in ("encode", "decode") and not set(map(str, args)) <= _CODECS:
        return None
    if len(value) * (1 + sum(map(_size, args))) > _MAX_WORK:
        return None
    return fold(getattr(value, name), *args)


def _size(value: Any) -> int:
    """How much an operation may make of a value: its length, or a number itself."""
    return abs(value) if isinstance(value, int) else len(value)


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "base64.b64decode": base64.b64decode,
    "builtins.bytes": lambda value, *_: bytes(value),
    "builtins.bytes.fromhex": bytes.fromhex,
    "builtins.chr": chr,
    "codecs.decode": lambda value, codec: codecs.decode(value, codec) if codec in _CODECS else None,
    **dict.fromkeys(["os.path.join", "pathlib.Path", "pathlib.PurePath"], posixpath.join),
    **dict.fromkeys(["os.path.expanduser", "os.path.abspath", "os.path.realpath"], str),
    "pathlib.Path.home": lambda: "~",
    "shlex.split": lambda text: shlex.split(text[:_MAX_CHARS]),
}
