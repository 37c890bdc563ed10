"""A cell's output as events of bounded size, within a budget. No I/O.

Output beyond the budget is dropped. The cell continues, and the result says how much was dropped.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Display, Event, Image, Stderr, Stdout, Truncated
from kernelbroker_kernel import contract

from .framing import VALUE_BYTES

_EVENT_OVERHEAD = 100
"""The cost of an event in addition to its content, so that a million tiny outputs are bounded as well."""

T = TypeVar("T", Stdout, Stderr)

_IMAGE_MIMES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Sizes in bytes."""

    max_output_size: int = 10 * 1024**2
    max_event_size: int = 1024**2
    max_variables: int = 100

    def lowered_to(self, size: int | None) -> OutputLimits:
        """These limits with at most so many bytes of output; None for no other limit."""
        if size is None or size >= self.max_output_size:
            return self
        return OutputLimits(size, self.max_event_size, self.max_variables)


class StreamContent(msgspec.Struct):
    name: str
    text: str


class DisplayContent(msgspec.Struct):
    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    transient: dict[str, Any] = {}


class OutputState(Protocol):
    """What is counted.

    Attributes:
        budget: bytes that may still follow.
        truncated: the amounts that were dropped so far.
    """

    budget: int
    truncated: Truncated


class Outputs:
    """Turns outputs into events, within the budget of one execution.

    `clean_beginning` masks secrets in the text of a rich output that was cut.
    """

    def __init__(
        self, limits: OutputLimits, clean_beginning: Callable[[str], str], state: OutputState
    ) -> None:
        self._clean_beginning = clean_beginning
        self._max_event_size = limits.max_event_size
        self._state = state

    def stream(self, content: StreamContent) -> Sequence[Event]:
        if content.name == "stderr":
            return self.text(Stderr, content.text)
        return self.text(Stdout, content.text)

    def traceback(self, text: str, name: str, value: str) -> list[Event]:
        """The traceback of an error as events. The first one has the error's name and value."""
        events = self.text(Stderr, text)
        for event in events:
            event.is_traceback = True
        if events:
            events[0].error_name, events[0].error_value = name, value
            self._state.budget -= _size(name) + _size(value)
        return [*events]

    def text(self, kind: type[T], text: str) -> list[T]:
        """Text as events of bounded size, as far as the budget allows."""
        events: list[T] = []
        step = max(1, self._max_event_size // 4)  # a character has at most 4 bytes
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            kept = self._fitting(piece)
            if kept:
                self._state.budget -= _size(kept) + _EVENT_OVERHEAD
                events.append(kind(content=kept))
            if kept is not piece:
                self._state.budget = 0
        return events

    def display(
        self, content: DisplayContent, *, is_result: bool = False, update: bool = False
    ) -> list[Event]:
        """A rich output as an `Image` or a `Display`. Where it does not fit, only its plain text is left.

        A picture with a display id is a `Display`, so that its updates find it.
        """
        dropped = content.data.pop(contract.DROPPED_MIME, None)
        chart = content.data.pop(contract.CHART_MIME, None)
        size = _bundle_size(content.data) + _bundle_size(content.metadata)
        if dropped is not None or size + _EVENT_OVERHEAD > self._state.budget:
            self._count_dropped(dropped, content.data)
            text = self._clean_beginning(self._fitting(content.data.get("text/plain")))
            if not text:
                return []
            content.data, content.metadata, size = {"text/plain": text}, {}, _size(text)
        display_id = content.transient.get("display_id")
        if display_id is None and not update and (image := _image(content)):
            image.is_result = is_result
            chart_size = _bundle_size({"chart": chart})
            if (
                isinstance(chart, dict)
                and size + chart_size + _EVENT_OVERHEAD <= self._state.budget
            ):
                image.chart, size = chart, size + chart_size
            return self.rich(image, size)
        event = Display(
            data=content.data,
            metadata=content.metadata,
            display_id=display_id if isinstance(display_id, str) else None,
            update=update,
            is_result=is_result,
        )
        return self.rich(event, size)

    def _count_dropped(self, dropped: Any, data: dict[str, Any]) -> None:
        """Count what is lost of a bundle besides its plain text; `dropped` was lost in the sandbox."""
        is_rich = data.keys() != {"text/plain"}
        if isinstance(dropped, dict):  # user code can send anything under this name
            is_rich = is_rich or dropped.get("rich") is not False
            if isinstance(lost := dropped.get("text_bytes"), int):
                self._state.truncated.output_bytes += max(0, lost)
        self._state.truncated.rich_outputs += is_rich

    def _fitting(self, text: Any) -> str:
        """The beginning of a text that the budget allows. What is cut off is counted."""
        if not isinstance(text, str):
            return ""
        size, room = _size(text), max(0, self._state.budget - _EVENT_OVERHEAD)
        if size <= room:
            return text
        kept = _cut(text, room)
        self._state.truncated.output_bytes += size - _size(kept)
        return kept

    def rich(self, event: Event, size: int) -> list[Event]:
        """A rich output, complete or not at all."""
        if size + _EVENT_OVERHEAD > self._state.budget:
            self._state.truncated.rich_outputs += 1
            return []
        self._state.budget -= size + _EVENT_OVERHEAD
        return [event]


def _image(content: DisplayContent) -> Image | None:
    """The picture of a bundle with its other forms; None if one of these is richer (Plotly, Vega)."""
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
                data={other: form for other, form in data.items() if other != mime},
                metadata=content.metadata,
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


def _bundle_size(bundle: dict[str, Any]) -> int:
    """Bytes: of texts as UTF-8, of other values as JSON with a surcharge for each."""
    size = 0
    for name, value in bundle.items():
        if isinstance(value, str):
            size += len(name) + _size(value)
        else:
            data = encode(value)
            size += len(name) + len(data) + VALUE_BYTES * data.count(b",")
    return size


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _cut(text: str, size: int) -> str:
    """The beginning of a text that fits into `size` bytes of UTF-8."""
    data = text.encode("utf-8", "surrogatepass")
    while size and data[size] & 0xC0 == 0x80:  # not within a character
        size -= 1
    return data[:size].decode("utf-8", "surrogatepass")
