"""Masks the values of secrets in the output of an execution. No I/O.

A secret's value becomes `***` in any text that a cell prints, shows or fails with: the value itself, the
value as quoted by Python or JSON, and, if it has several lines, each line. Code can still print a secret
in another form: this prevents mistakes, and does not protect against hostile code.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from ahocorasick_rs import BytesAhoCorasick, MatchKind
from kernelbroker.protocol.events import Display, Event, Image, Result, Stderr, Stdout

MASK = "***"
MIN_CHARS = 4
"""Shorter values are not masked, since they are part of many words."""

_PART_CHARS = 1024

_OUR_WORDS = frozenset({"execution_id", "status", "cause", "rule", "level", "language", "mime"})
"""Fields whose values are words of the protocol."""
_BINARY = ("image/", "audio/", "video/", "application/pdf", "application/octet-stream")


class Redactor:
    """The redactor of one execution. Pass it every event in order, and emit the events that it returns."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {form for secret in secrets if len(secret) >= MIN_CHARS for form in _forms(secret)}
        self._values = _Values(values) if values else None
        self._kept: dict[type[Stdout | Stderr], Stdout | Stderr] = {}

    def events(self, event: Event) -> list[Event]:
        """Return the events to emit, without secrets.

        The end of a text is held back while it may be the beginning of a secret.
        """
        if self._values is None:
            return [event]
        match event:
            case Stdout() | Stderr():
                return self._text(event)
            case Image(mime=mime, content=content):
                if not _is_binary(mime):
                    content = self.clean(content)
                rest = self.clean(msgspec.structs.replace(event, data={}, content=""))
                data = self._bundle(event.data)
                return [msgspec.structs.replace(rest, content=content, data=data)]
            case Display():
                rest = self.clean(msgspec.structs.replace(event, data={}))
                return [msgspec.structs.replace(rest, data=self._bundle(event.data))]
            case Result():
                return [*self._held_back(event), self.clean(event)]
        return [self.clean(event)]

    def rest(self) -> list[Event]:
        """Return the text that was held back, at the end."""
        kept, self._kept = self._kept, {}
        return [*kept.values()]

    def clean(self, value: Any) -> Any:
        """Return a value without secrets, of the same type: text, any JSON, or a struct."""
        if self._values is None:
            return value
        try:
            return self._clean(value)
        except RecursionError:  # only hostile code nests this deep
            return type(value)()

    def clean_beginning(self, text: str) -> str:
        """The beginning of a text that was cut off, without secrets, also without half a one at its end."""
        if self._values is None:
            return text
        return self._values.split(self._values.mask(text))[0]

    def _clean(self, value: Any) -> Any:
        match value:
            case str():
                return self._values.mask(value) if self._values else value
            case list():
                return [self._clean(each) for each in value]
            case dict():
                return {self._clean(name): self._clean(each) for name, each in value.items()}
            case msgspec.Struct():
                fields = {name: getattr(value, name) for name in value.__struct_fields__}
                clean = {
                    name: each if name in _OUR_WORDS else self.clean(each)
                    for name, each in fields.items()
                }
                return msgspec.structs.replace(value, **clean)
        return value

    def _bundle(self, data: dict[str, Any]) -> dict[str, Any]:
        return {
            mime: content if _is_binary(mime) else self.clean(content)
            for mime, content in data.items()
        }

    def _text(self, event: Stdout | Stderr) -> list[Event]:
        kind = type(event)
        held = self._kept.pop(kind, None)
        assert self._values is not None
        text = self._values.mask((held.content if held else "") + event.content)
        text, begun = self._values.split(text)
        if begun:
            self._kept[kind] = held = msgspec.structs.replace(event, content=begun)
            if text and isinstance(held, Stderr):  # the event before it has them
                held.error_name = held.error_value = ""
        return [msgspec.structs.replace(event, content=text)] if text else []

    def _held_back(self, result: Result) -> list[Event]:
        """Return the text that was held back, or none if output was cut: it may be half of a secret."""
        is_cut = result.truncated is not None and result.truncated.output_bytes > 0
        rest = self.rest()
        return [] if is_cut else rest


class _Values:
    """Finds values in text, in a time that does not grow with their number (Aho and Corasick).

    Long values are found by their parts. The text is searched as UTF-8, which has room for lone surrogates.
    """

    def __init__(self, values: Iterable[str]) -> None:
        parts = {_bytes(part) for value in values for part in _parts(value)}
        self._sorted = sorted(parts)
        self._longest = max(map(len, parts))
        self._whole = BytesAhoCorasick(self._sorted, MatchKind.LeftmostLongest)
        # Where a value may begin. All have at least so many bytes.
        self._heads = BytesAhoCorasick({each[:MIN_CHARS] for each in parts})
        self._shortest = {each[:size] for each in parts for size in range(1, MIN_CHARS)}

    def mask(self, text: str) -> str:
        """Return the text with a mask in the place of each value."""
        data = _bytes(text)
        if not (matches := self._whole.find_matches_as_indexes(data)):
            return text
        clean, position = bytearray(), 0
        for _, start, end in matches:
            clean += data[position:start]
            clean += MASK.encode()
            position = end
        return _text(clean + data[position:])

    def split(self, text: str) -> tuple[str, str]:
        """Return a text in two parts. The second one may be the beginning of a value."""
        data = _bytes(text)
        if not (begun := self._begun(data)):
            return text, ""
        return _text(data[:-begun]), _text(data[-begun:])

    def _begun(self, data: bytes) -> int:
        """How many bytes at the end may be the beginning of a value."""
        tail = data[max(0, len(data) - self._longest + 1) :]
        for _, start, _ in self._heads.find_matches_as_indexes(tail, overlapping=True):
            if self._is_beginning(tail[start:]):
                return len(tail) - start
        for size in range(min(MIN_CHARS - 1, len(tail)), 0, -1):
            if tail[-size:] in self._shortest:
                return size
        return 0

    def _is_beginning(self, data: bytes) -> bool:
        at = bisect_left(self._sorted, data)
        return at < len(self._sorted) and self._sorted[at].startswith(data)


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(data: bytes | bytearray) -> str:
    return data.decode(errors="surrogatepass")


def _parts(value: str) -> Iterator[str]:
    """A value in parts of about the same size, so that no step of the search takes long."""
    count = -(-len(value) // _PART_CHARS)
    for number in range(count):
        yield value[number * len(value) // count : (number + 1) * len(value) // count]


def _forms(secret: str) -> Iterator[str]:
    """Return the forms of a secret that are masked."""
    yield secret
    yield repr(secret)[1:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield from (line for each in secret.splitlines() if len(line := each.strip()) >= MIN_CHARS)


def _is_binary(mime: str) -> bool:
    """Return whether it is base64, where a short value can occur by chance."""
    return mime.startswith(_BINARY) and mime != "image/svg+xml"
