"""HTML for notebooks, made from untrusted output of a sandbox.

A notebook trusts the output of its own cells: HTML, SVG, markdown and scripts put there would act as
the user. So all text is escaped. HTML goes into a frame with an empty `sandbox` attribute, where no
script runs and nothing of the page can be reached, under a policy that loads nothing from anywhere. SVG
goes into `<img>`, where it is only a picture. Types that front ends run or interpret (JavaScript,
markdown, LaTeX, Vega, Plotly) are left out; callers who trust their cells find them in `Display.data`.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from html import escape
from typing import Any

from .protocol import events

_SAFE_MIMES = ("text/plain", "image/png", "image/jpeg")
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
)
_FRAME_STYLE = "width:100%;height:20em;border:0;resize:vertical;overflow:auto"
_ERROR_STYLE = "color:#b00020"


def safe_bundle(data: Mapping[str, Any]) -> dict[str, str]:
    """The parts of a MIME bundle that a notebook may show."""
    bundle = {mime: _encodable(t) for mime in _SAFE_MIMES if isinstance(t := data.get(mime), str)}
    html = data.get("text/html")
    if isinstance(html, str):
        bundle["text/html"] = _frame(html)
    return bundle


def image_html(mime: str, content: bytes) -> str:
    """A picture; `content` is the bytes of its file."""
    data = base64.b64encode(content).decode("ascii")
    return f'<img src="data:{escape(mime)};base64,{data}" style="max-width:100%">'


def display_html(data: Mapping[str, Any]) -> str:
    """A MIME bundle: its HTML in a frame, or its plain text."""
    html, text = data.get("text/html"), data.get("text/plain")
    if isinstance(html, str):
        return _frame(html)
    return text_html(text) if isinstance(text, str) else ""


def text_html(text: str, *, is_error: bool = False) -> str:
    """Plain text; empty text gives nothing."""
    style = _ERROR_STYLE if is_error else ""
    return f'<pre style="{style}">{escape(_encodable(text))}</pre>' if text else ""


def json_html(value: Any) -> str:
    """A value as indented JSON."""
    return text_html(json.dumps(value, indent=2, ensure_ascii=False))


def table_html(table: events.DataFrame, title: str) -> str:
    """The preview with its row labels, below the title."""
    keys = [key for key in table.columns if not table.preview or key in table.preview[0]]
    labels = dict(zip(table.columns, table.labels or table.columns, strict=False))
    index = table.index
    row_labels = [_levels(value) for value in index.values] if index else [[]] * len(table.preview)
    names = ["" if name is None else name for name in index.names] if index else []
    header = "".join(_cell("th", " / ".join(map(_text, _levels(labels[key])))) for key in keys)
    head = "".join(_cell("th", name) for name in names) + header
    rows = "".join(
        "<tr>"
        + "".join(_cell("th", value) for value in label)
        + "".join(_cell("td", row.get(key)) for key in keys)
        + "</tr>"
        for label, row in zip(row_labels, table.preview, strict=False)
    )
    caption = f"{title}; the first {len(table.preview):,} rows"
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _frame(html: str) -> str:
    html = _encodable(html)
    return f'<iframe sandbox="" srcdoc="{escape(_POLICY + html)}" style="{_FRAME_STYLE}"></iframe>'


def _levels(label: Any) -> list[Any]:
    return label if isinstance(label, list) else [label]


def _cell(tag: str, value: Any) -> str:
    return f"<{tag}>{escape(_encodable(_text(value)))}</{tag}>"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _encodable(text: str) -> str:
    """Without lone surrogates, on which a notebook's own messages would fail."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
