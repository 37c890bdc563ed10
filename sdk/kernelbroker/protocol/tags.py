"""The text form of an execution's events: tags, for people with curl and for simple parsers.

    <txt>…</txt>          standard output
    <err>…</err>          standard error
    <img>…</img>          a picture: base64 PNG; other formats have mime="…"
    <display>…</display>  any other rich output: a JSON MIME bundle
    <result>…</result>    the result, as JSON

No output can forge or break a tag. In text, `&`, `<` and `>` are written as entities, and two kinds of
characters that do not survive in UTF-8 text (lone surrogates, and carriage returns, which line-based
readers change) as numeric references. In JSON these three characters are `\\\\u` escapes.
"""

from __future__ import annotations

import re
from html import escape

from .codec import encode
from .events import Clear, Display, Event, Image, Input, Result, Started, Stderr, Stdout

_NUMERIC = re.compile("[\ud800-\udfff\r]")
_ENTITY = re.compile(r"&(?:amp|lt|gt|#x([0-9A-F]{1,4}));")
_NAMED = {"&amp;": "&", "&lt;": "<", "&gt;": ">"}


def encode_tags(event: Event) -> str:
    """The tags for one event, ending in a newline; empty for those that the text form leaves out."""
    match event:
        case Stdout(content=text):
            return f"<txt>{escape_text(text)}</txt>\n"
        case Stderr(content=text):
            return f"<err>{escape_text(text)}</err>\n"
        case Image(mime=mime, content=content):
            attribute = "" if mime == "image/png" else f' mime="{escape(mime)}"'
            return f"<img{attribute}>{escape_text(content)}</img>\n"
        case Display(data=data):
            return f"<display>{_json(data)}</display>\n"
        case Result():
            return f"<result>{_json(event)}</result>\n"
        case Started() | Clear() | Input():
            return ""


def escape_text(text: str) -> str:
    """Return text in the form that it has between tags."""
    text = escape(text, quote=False)
    return _NUMERIC.sub(lambda m: f"&#x{ord(m.group()):X};", text)


def unescape_text(text: str) -> str:
    """Return the original of a text from `escape_text`."""
    return _ENTITY.sub(lambda m: chr(int(m[1], 16)) if m[1] else _NAMED[m[0]], text)


def _json(value: object) -> str:
    """JSON without `<`, `>` and `&`; they can stand only within its strings, where escapes serve."""
    text = encode(value).decode()
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
