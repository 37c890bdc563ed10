"""What JavaScript's own functions make of constant text: how code puts together what it hides.

As `folding` for Python: only what is harmless to compute is computed, within bounds.
"""

from __future__ import annotations

import codecs
import posixpath
import re
from urllib.parse import unquote

MAX_TEXT = 100_000
_MAX_SEARCHED = 1_000
"""Characters of a text that something is replaced in: replacing can make much more of it."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})")
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}
_NUMBERS = (
    (re.compile(r"0[xX][0-9a-fA-F]{1,4}"), 16),
    (re.compile(r"0[0-7]{1,5}"), 8),
    (re.compile(r"[0-9]{1,5}"), 10),
)
PLACES = {"os.homedir": "~", "os.tmpdir": "/tmp", "process.cwd": "."}
"""Calls that give a directory."""
DECODERS = {"atob", "decodeURIComponent", "unescape", "String"}


def decoded(name: str, text: str) -> str | None:
    """What a function of `DECODERS` gives for a text; None where it fails."""
    try:
        if name == "atob":
            return codecs.decode(text.encode(), "base64").decode("latin-1")
        if name in ("decodeURIComponent", "unescape"):
            return unquote(text)
    except ValueError:
        return None
    return text


def joined(parts: tuple[str, ...]) -> str:
    """`path.join` of these, and `path.resolve` as well as can be told."""
    return posixpath.normpath("/".join(parts))[:MAX_TEXT]


def from_char_code(codes: list[str]) -> str:
    """`String.fromCharCode` of numbers as they are written; what is no such number is left out."""
    known = (_number(code) for code in codes)
    return "".join(chr(number) for number in known if number is not None)


def _number(text: str) -> int | None:
    for number, base in _NUMBERS:
        if number.fullmatch(text):
            return int(text, base)
    return None


def method(text: str, name: str, args: list[str] | None) -> str | None:
    """What a method of a string gives for `args`, or None; they are None where one is not known."""
    match name, args:
        case "toString", _:
            return text
        case "toLowerCase", _:
            return text.lower()
        case "toUpperCase", _:
            return text.upper()
        case "trim", _:
            return text.strip()
        case "concat", [*others]:
            return (text + "".join(others))[:MAX_TEXT]
        case "replace" | "replaceAll", [old, new] if len(text) < _MAX_SEARCHED:
            return text.replace(old, new, 1 if name == "replace" else -1)[:MAX_TEXT]
    return None


def unescaped(escape: str) -> str:
    """The character that an escape sequence in a string stands for."""
    if found := _ESCAPE.fullmatch(escape):
        code = int(found[1] or found[2] or found[3], 16)
        return chr(code) if code < 0x110000 else ""
    return _LETTERS.get(escape[1:], escape[1:])
