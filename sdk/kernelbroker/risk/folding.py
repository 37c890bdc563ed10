"""What an expression of constants comes to: the strings that code puts together to hide a name.

Only what is harmless to compute is computed, on small values, and nothing of the code is called. What comes
of it is `bounded`, so that no value takes long to hash, to measure or to put into text.
"""

from __future__ import annotations

import ast
import base64
import binascii
import codecs
import operator
import posixpath
import re
import shlex
import zlib
from collections.abc import Callable
from typing import Any

MAX_TEXT = 100_000
_SMALL = 2_000
MAX_ITEMS = 5_000
"""Of a list, and of the lists in it."""
_MAX_NESTED = 8
"""Lists in lists."""
_MAX_NUMBER = 2**64

_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Sub: operator.sub,
    ast.BitXor: operator.xor,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
}
_METHODS = {
    "capitalize", "decode", "encode", "format", "hex", "join", "lower", "lstrip", "removeprefix",
    "removesuffix", "replace", "rsplit", "rstrip", "split", "strip", "swapcase", "upper",
}  # fmt: skip
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "base64.b64decode": base64.b64decode,
    "base64.standard_b64decode": base64.b64decode,
    "base64.urlsafe_b64decode": base64.urlsafe_b64decode,
    "base64.b32decode": base64.b32decode,
    "base64.b16decode": base64.b16decode,
    "base64.b85decode": base64.b85decode,
    "base64.a85decode": base64.a85decode,
    "base64.decodebytes": base64.decodebytes,
    "binascii.a2b_base64": binascii.a2b_base64,
    "binascii.unhexlify": binascii.unhexlify,
    "binascii.a2b_hex": binascii.a2b_hex,
    "bytes.fromhex": bytes.fromhex,
    "zlib.decompress": lambda data: zlib.decompressobj().decompress(data, MAX_TEXT),
    "builtins.chr": chr,
    "builtins.ord": ord,
    "builtins.str": lambda value: value if isinstance(value, str) else str(int(value)),
    "builtins.int": lambda value: int(value) if len(str(value)) < 20 else None,
    "builtins.bytes": lambda value: bytes(value) if not isinstance(value, int) else None,
    "builtins.bytearray": lambda value: bytes(value) if not isinstance(value, int) else None,
    "builtins.list": tuple,
    "builtins.tuple": tuple,
    "builtins.reversed": lambda value: value[::-1],
    "posixpath.expanduser": str,
    "os.path.expanduser": str,
    "os.path.expandvars": str,
    "os.path.abspath": str,
    "os.path.realpath": str,
    "os.fspath": str,
    "os.path.dirname": posixpath.dirname,
    "os.path.normpath": posixpath.normpath,
    "shlex.split": lambda text: tuple(shlex.split(text)) if len(text) <= _SMALL else None,
    "shlex.quote": shlex.quote,
}
_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, zlib.error)


def bounded(value: object) -> object:
    """The value, or None where it is too large to go on with."""
    match value:
        case int():
            return value if abs(value) < _MAX_NUMBER else None
        case str() | bytes():
            return value if len(value) <= 4 * MAX_TEXT else None
        case tuple():
            small = _items(value) <= MAX_ITEMS and _length(value) <= MAX_TEXT
            return value if small else None
    return value


def binary(kind: ast.operator, left: object, right: object) -> object:
    """The value of `left kind right`, or None where it is not to be had."""
    return bounded(_binary(kind, left, right))


def _binary(kind: ast.operator, left: object, right: object) -> object:
    try:
        match kind:
            case ast.Add() if _length(left) + _length(right) <= MAX_TEXT:
                return left + right  # type: ignore[operator]
            case ast.Mult() if _times(left, right) <= _SMALL:
                return left * right  # type: ignore[operator]
            case ast.Mod() if isinstance(left, str) and _fits(left, right):
                return left % right if re.fullmatch(r"([^%]|%[sc%])*", left) else None
            case ast.Div() if isinstance(left, str) and isinstance(right, str):
                return right if right.startswith("/") else f"{left}/{right}"
            case _ if isinstance(left, int) and isinstance(right, int):
                known = _OPERATORS.get(type(kind))
                return known(left, right) if known and abs(left) + abs(right) < 2**40 else None
    except _FAULTS:
        pass
    return None


def subscript(value: object, index: object) -> object:
    try:
        return value[index]  # type: ignore[index]
    except _FAULTS:
        return None


def method(value: object, name: str, args: tuple[Any, ...]) -> object:
    """The value of `value.name(*args)` for text, or None."""
    if name not in _METHODS or not isinstance(value, str | bytes) or not _fits(value, *args):
        return None
    if name == "format" and re.search(r"\{[^}]*[:!.\[]", str(value)):
        return None  # a width could be of any size
    if name in ("encode", "decode") and not all(_is_plain_codec(arg) for arg in args[:1]):
        return None
    try:
        folded = getattr(value, name)(*args)
    except _FAULTS:
        return None
    return bounded(tuple(folded) if isinstance(folded, list) else folded)


def call(name: str, args: tuple[Any, ...]) -> object:
    """The value of a known function of constants, or None."""
    return bounded(_call(name, args))


def _call(name: str, args: tuple[Any, ...]) -> object:
    if any(_length(arg) > MAX_TEXT for arg in args):
        return None
    try:
        if name == "codecs.decode" and len(args) == 2:
            return codecs.decode(args[0], args[1]) if args[1] in _TEXT_CODECS else None
        if name in ("os.path.join", "posixpath.join") and all(isinstance(a, str) for a in args):
            joined: object = args[0]
            for part in args[1:]:
                joined = binary(ast.Div(), joined, part)
            return joined
        if name in _DECODERS and args:
            return _DECODERS[name](args[0])
    except _FAULTS:
        pass
    return None


_TEXT_CODECS = {"rot13", "rot_13", "hex", "base64", "utf-8", "utf8", "ascii", "latin1"}


def _is_plain_codec(name: object) -> bool:
    return isinstance(name, str) and name.lower() in {"utf-8", "utf8", "ascii", "latin1", "latin-1"}


def _length(value: object) -> int:
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, tuple):
        return sum(_length(item) for item in value) + len(value)
    return 1


def _items(value: object, nested: int = 0) -> int:
    """How many a list has, with those of the lists in it; counted until they are too many."""
    if not isinstance(value, tuple):
        return 1
    if nested > _MAX_NESTED:
        return MAX_ITEMS + 1
    count = 1
    for item in value:
        count += _items(item, nested + 1)
        if count > MAX_ITEMS:
            break
    return count


def _times(left: object, right: object) -> int:
    counts = [value for value in (left, right) if isinstance(value, int)]
    return (
        max(1, counts[0]) * _length(right if left is counts[0] else left) if counts else _SMALL + 1
    )


def _fits(*values: object) -> bool:
    """Small enough that no method makes much of them; long text may be split, joined and decoded."""
    total = sum(_length(value) for value in values)
    return total <= _SMALL or (len(values) <= 2 and total <= MAX_TEXT and _length(values[-1]) <= 8)
