"""Pictures and displays of callbacks and results."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from . import notebook
from .bundle_text import bundle_text
from .protocol import events

_SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    "image/svg+xml": ".svg",
}


@dataclass(frozen=True, slots=True)
class Image:
    """A picture.

    Attributes:
        mime: such as `image/png`.
        data: text for `image/svg+xml`, else bytes; empty if the cell sent no valid base64.
        width, height: in pixels, if known.
        bundle: the rest of the MIME bundle that held the picture, such as `text/plain`. Untrusted.
        metadata: of the MIME bundle.
        is_result: the picture is the value of the cell's last expression.
        chart: what a figure of matplotlib shows: its `type` (`line`, `scatter`, `bar`, `pie`,
            `box_and_whisker`, or `superchart` with several axes), its `title`, axes and `elements`. None
            if it is none of these, or has more than 5,000 points. Untrusted.
    """

    mime: str
    data: bytes | str = field(repr=False)
    width: int | None = None
    height: int | None = None
    bundle: dict[str, Any] = field(default_factory=dict, repr=False)
    metadata: dict[str, Any] = field(default_factory=dict, repr=False)
    is_result: bool = False
    chart: dict[str, Any] | None = field(default=None, repr=False)

    @classmethod
    def from_event(cls, event: events.Image) -> Image:
        data: bytes | str = event.content
        if event.mime != "image/svg+xml":
            try:
                data = base64.b64decode(event.content)
            except (binascii.Error, ValueError):
                data = b""  # A cell can show anything under any name.
        size = (event.width, event.height)
        return cls(
            event.mime, data, *size, event.data, event.metadata, event.is_result, event.chart
        )

    @property
    def content(self) -> bytes:
        """The picture as the bytes of a file."""
        if isinstance(self.data, str):
            return self.data.encode("utf-8", "backslashreplace")
        return self.data

    @property
    def suffix(self) -> str:
        """The suffix of a file name for this format, with its dot."""
        return _SUFFIXES.get(self.mime, ".bin")

    def save(self, path: str | Path) -> Path:
        """Write the picture to `path`. Returns the path."""
        path = Path(path)
        path.write_bytes(self.content)
        return path

    def _repr_png_(self) -> bytes | None:
        return self.content if self.mime == "image/png" else None

    def _repr_jpeg_(self) -> bytes | None:
        return self.content if self.mime == "image/jpeg" else None

    def _repr_html_(self) -> str | None:
        # No _repr_svg_: some front ends put SVG, with its scripts, straight into their own page.
        if self.mime in ("image/png", "image/jpeg"):
            return None
        return notebook.image_html(self.mime, self.content)


@dataclass(frozen=True, slots=True)
class Display:
    """A rich output as its MIME bundle. It is untrusted, in particular `data["text/html"]`.

    Attributes:
        data: the content for each MIME type.
        metadata: of the MIME bundle.
        display_id: later outputs with this id may replace this one; or None.
        is_result: the bundle is the value of the cell's last expression.
    """

    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None
    is_result: bool = False

    @property
    def text(self) -> str:
        """The bundle as text: Markdown, plain text, LaTeX, JSON, or the text of HTML; or empty."""
        return bundle_text(self.data)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return notebook.safe_bundle(self.data)
