"""A MIME bundle as plain text, for terminals and for models."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAMELESS = re.compile(r"<[\w.]+(?: object)?(?: at 0x[0-9A-Fa-f]+)?>")
"""The text of an object that has no text of its own."""
_TAG = re.compile(r"</?([A-Za-z][A-Za-z0-9]*)")
_BLOCKS = frozenset(
    {
        "address",
        "article",
        "blockquote",
        "br",
        "caption",
        "dd",
        "div",
        "dl",
        "dt",
        "figure",
        "h1",
        "h2",
        "h3",
    }
    | {
        "h4",
        "h5",
        "h6",
        "hr",
        "li",
        "ol",
        "p",
        "pre",
        "section",
        "table",
        "tbody",
        "thead",
        "tr",
        "ul",
    }
)
_UNSEEN = frozenset({"head", "script", "style", "template", "title"})


def bundle_text(data: Mapping[str, Any]) -> str:
    """Return what says most as text: Markdown as it is, the plain text, LaTeX, JSON, or the text of HTML.

    Plain text such as `<IPython.core.display.HTML object>` says nothing, and is taken last.
    """
    plain = _text(data, "text/plain")
    if markdown := _text(data, "text/markdown"):
        return markdown
    if plain and not _NAMELESS.fullmatch(plain.strip()):
        return plain
    if latex := _text(data, "text/latex"):
        return latex
    for mime, value in data.items():
        if mime == "application/json" or mime.endswith("+json"):
            return json_text(value)
    return html_text(_text(data, "text/html")) or plain


def json_text(value: Any) -> str:
    """A JSON value, indented."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def html_text(source: str) -> str:
    """The text that a browser would show: blocks on lines of their own, bars between the cells of a table.

    The time is linear in the length of the source, whatever it is: `html.parser` takes minutes for some.
    """
    lines = [re.sub(r"[ \t]+", " ", line).strip() for line in "".join(_pieces(source)).split("\n")]
    return "\n".join(line for line in lines if line.strip(" |"))


def _pieces(source: str) -> Iterator[str]:
    """The texts, with line feeds and bars in the places of tags."""
    lower, position, is_first_cell, is_in_cell = source.lower(), 0, True, False
    while (begin := source.find("<", position)) >= 0:
        yield _inline(source[position:begin])
        tag, is_note = _TAG.match(lower, begin), source.startswith(("<!", "<?"), begin)
        if tag is None and not is_note:  # a sign in the text
            yield "<"
            position = begin + 1
            continue
        close = "-->" if source.startswith("<!--", begin) else ">"
        end = source.find(close, begin)
        if end < 0:  # the rest is one open tag
            return
        position = end + len(close)
        if tag is None:
            continue
        name, is_end = tag[1], lower[begin + 1] == "/"
        if name in _UNSEEN and not is_end:
            position = lower.find(f"</{name}", position)
            if position < 0:
                return
        elif name in ("td", "th"):
            if not is_end:
                yield "" if is_first_cell else " | "
                is_first_cell = False
            is_in_cell = not is_end
        elif name in _BLOCKS:
            if name in ("tr", "table"):
                is_in_cell, is_first_cell = False, True
            yield " " if is_in_cell else "\n"
    yield _inline(source[position:])


def _inline(text: str) -> str:
    return html.unescape(re.sub(r"\s+", " ", text))


def _text(data: Mapping[str, Any], mime: str) -> str:
    return value if isinstance(value := data.get(mime), str) else ""
