"""How results look in a notebook.

What a sandbox sends is untrusted, and a notebook trusts the output of its own cells: HTML, SVG,
markdown and scripts put there would act as the user. So all text is escaped; HTML goes into a frame
with an empty `sandbox` attribute, where no script runs and nothing of the page can be reached, under a
policy that loads nothing from anywhere; SVG goes into `<img>`, where it is a mere picture. Types that
front ends run or interpret (JavaScript, markdown, LaTeX, Vega, Plotly) are not handed on: they stay in
`Display.data` for callers who trust their cells.
"""

from __future__ import annotations

import base64
import json
from html import escape
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .results import Display, ExecutionResult, Image
    from .tables import DataFrameInfo

_SAFE_MIMES = ("text/plain", "image/png", "image/jpeg")
_POLICY = (
    '<meta http-equiv="Content-Security-Policy" '
    "content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
)
_FRAME_STYLE = "width:100%;height:20em;border:0;resize:vertical;overflow:auto"
_ERROR_STYLE = "color:#b00020"


def safe_bundle(display: Display) -> dict[str, str]:
    """The display's MIME bundle as far as a notebook may have it."""
    bundle = {m: _encodable(t) for m in _SAFE_MIMES if isinstance(t := display.data.get(m), str)}
    html = display.data.get("text/html")
    if isinstance(html, str):
        bundle["text/html"] = _frame(html)
    return bundle


def result_html(result: ExecutionResult) -> str:
    """Output, pictures, displays, the table or value, and the error."""
    parts = [
        _pre(result.stdout),
        _pre(result.stderr, _ERROR_STYLE),
        *map(image_html, result.images),
        *map(_display_html, result.displays),
    ]
    if result.dataframe is not None:
        parts.append(table_html(result.dataframe))
    if result.return_value is not None:
        parts.append(_pre(json.dumps(result.return_value, indent=2, ensure_ascii=False)))
    if result.error and result.error not in result.stderr:
        parts.append(_pre(result.error, _ERROR_STYLE))
    return f"<div>{''.join(parts)}</div>"


def image_html(image: Image) -> str:
    data = base64.b64encode(image.content).decode("ascii")
    return f'<img src="data:{escape(image.mime)};base64,{data}" style="max-width:100%">'


def table_html(table: DataFrameInfo) -> str:
    """The preview with its row labels, under the table's facts."""
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
    caption = f"{table.title}; the first {len(table.preview):,} rows"
    return (
        f"<table><caption>{escape(caption)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    )


def _display_html(display: Display) -> str:
    html = display.data.get("text/html")
    return _frame(html) if isinstance(html, str) else _pre(display.text)


def _frame(html: str) -> str:
    html = _encodable(html)
    return f'<iframe sandbox="" srcdoc="{escape(_POLICY + html)}" style="{_FRAME_STYLE}"></iframe>'


def _pre(text: str, style: str = "") -> str:
    return f'<pre style="{style}">{escape(_encodable(text))}</pre>' if text else ""


def _levels(label: Any) -> list[Any]:
    return label if isinstance(label, list) else [label]


def _cell(tag: str, value: Any) -> str:
    return f"<{tag}>{escape(_encodable(_text(value)))}</{tag}>"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _encodable(text: str) -> str:
    """Without lone surrogates, on which a notebook's own messages would fail."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")
