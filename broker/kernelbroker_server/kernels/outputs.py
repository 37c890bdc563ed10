"""What a cell puts out, as events of bounded size, as far as its budget goes. No I/O.

Text that does not fit is cut; the cell runs on, and the result says how much was lost.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Any

import msgspec
from kernelbroker.protocol.events import Display, Event, Image, Stderr, Stdout, Truncated
from kernelbroker_kernel import contract

_EVENT_OVERHEAD = 100
"""Bytes that an event costs besides its content, so that a million tiny outputs are bounded too."""

_IMAGE_MIMES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Sizes in bytes."""

    max_output_size: int = 10 * 1024**2
    max_event_size: int = 1024**2
    max_variables: int = 100


class StreamContent(msgspec.Struct):
    name: str
    text: str


class DisplayContent(msgspec.Struct):
    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    transient: dict[str, Any] = {}


class Outputs:
    """Turns outputs into events, and keeps account.

    Attributes:
        truncated: what was cut so far.
    """

    def __init__(self, limits: OutputLimits) -> None:
        self.truncated = Truncated()
        self._max_event_size = limits.max_event_size
        self._budget = limits.max_output_size

    def stream(self, content: StreamContent) -> list[Event]:
        return self.text(Stderr if content.name == "stderr" else Stdout, content.text)

    def text(self, kind: type[Stdout] | type[Stderr], text: str) -> list[Event]:
        """Text as events of bounded size, as far as the budget goes."""
        events: list[Event] = []
        step = max(1, self._max_event_size // 4)  # a character has at most 4 bytes
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            size = _size(piece)
            room = max(0, self._budget - _EVENT_OVERHEAD)
            kept = piece if size <= room else _cut(piece, room)
            self.truncated.output_bytes += size - (size if kept is piece else _size(kept))
            if kept:
                self._budget -= _size(kept) + _EVENT_OVERHEAD
                events.append(kind(content=kept))
            if kept is not piece:
                self._budget = 0
        return events

    def display(self, content: DisplayContent, size: int, *, update: bool) -> list[Event]:
        """A rich output: a picture, or whatever else it is. `size` is its weight, in bytes.

        One with a display id stays a bundle, so that its updates find it.
        """
        if contract.DROPPED_MIME in content.data:
            self.truncated.rich_outputs += 1
            return []
        display_id = content.transient.get("display_id")
        if display_id is None and not update and (image := _image(content)):
            return self.rich(image, _size(image.content))
        event = Display(
            data=content.data,
            metadata=content.metadata,
            display_id=display_id if isinstance(display_id, str) else None,
            update=update,
        )
        return self.rich(event, size)

    def rich(self, event: Event, size: int) -> list[Event]:
        """A rich output whole, or not at all: half a picture is of no use."""
        if size + _EVENT_OVERHEAD > self._budget:
            self.truncated.rich_outputs += 1
            return []
        self._budget -= size + _EVENT_OVERHEAD
        return [event]


def _image(content: DisplayContent) -> Image | None:
    """The picture of a bundle, unless it carries something richer (Plotly, Vega) that has one beside."""
    data = content.data
    if any(mime.startswith("application/") for mime in data):
        return None
    for mime in _IMAGE_MIMES:
        picture = data.get(mime)
        if isinstance(picture, str):
            width, height = _dimensions(mime, picture, content.metadata.get(mime))
            return Image(
                mime=mime,
                content=picture if mime == "image/svg+xml" else "".join(picture.split()),
                width=width,
                height=height,
            )
    return None


def _dimensions(mime: str, picture: str, metadata: Any) -> tuple[int | None, int | None]:
    if mime == "image/png":
        try:  # signature (8), chunk length (4), "IHDR" (4), width (4), height (4)
            header = base64.b64decode(picture[:32])
        except (binascii.Error, ValueError):
            return None, None
        if header[12:16] == b"IHDR":
            return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])
    if isinstance(metadata, dict):
        width, height = metadata.get("width"), metadata.get("height")
        if isinstance(width, int) and isinstance(height, int):
            return width, height
    return None, None


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _cut(text: str, size: int) -> str:
    """The beginning of a text that fits into `size` bytes of UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    while size and data[size] & 0xC0 == 0x80:  # not within a character
        size -= 1
    return data[:size].decode("utf-8", "surrogatepass")
