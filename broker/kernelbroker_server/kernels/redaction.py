"""Masks the values of secrets in the output of an execution. No I/O.

A secret's value becomes `***` in any text that a cell prints, shows or fails with: the value itself, the
value as quoted by Python or JSON, and, if it has several lines, each line. Code can still print a secret
in another form: this prevents mistakes, and does not protect against hostile code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from kernelbroker.protocol.events import Display, Event, Image, Result, Stderr, Stdout

MASK = "***"
MIN_CHARS = 4
"""Shorter values are not masked, since they are part of many words."""

_OUR_WORDS = frozenset({"execution_id", "status", "cause", "rule", "level", "language", "mime"})
"""Fields whose values are words of the protocol."""
_BINARY = ("image/", "audio/", "video/", "application/pdf", "application/octet-stream")


class Redactor:
    """The redactor of one execution. Pass it every event in order, and emit the events that it returns."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {form for secret in secrets if len(secret) >= MIN_CHARS for form in _forms(secret)}
        # Longest first: a value may be the beginning of another.
        self._values = sorted(values, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._values)) or r"(?!)")
        self._kept: dict[type[Stdout | Stderr], Stdout | Stderr] = {}

    def events(self, event: Event) -> list[Event]:
        """Return the events to emit, without secrets.

        The end of a text is held back while it may be the beginning of a secret.
        """
        if not self._values:
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
        if not self._values:
            return value
        try:
            return self._clean(value)
        except RecursionError:  # only hostile code nests this deep
            return type(value)()

    def clean_beginning(self, text: str) -> str:
        """The beginning of a text that was cut off, without secrets, also without half a one at its end."""
        text = str(self.clean(text))
        return text[: len(text) - self._begun(text)]

    def _begun(self, text: str) -> int:
        """How many characters at the end of `text` may be the beginning of a secret."""
        return max((_overlap(text, value) for value in self._values), default=0)

    def _clean(self, value: Any) -> Any:
        match value:
            case str():
                return self._pattern.sub(MASK, value)
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
        text = self._pattern.sub(MASK, (held.content if held else "") + event.content)
        if begun := self._begun(text):
            self._kept[kind] = held = msgspec.structs.replace(event, content=text[-begun:])
            text = text[:-begun]
            if text and isinstance(held, Stderr):  # the event before it has them
                held.error_name = held.error_value = ""
        return [msgspec.structs.replace(event, content=text)] if text else []

    def _held_back(self, result: Result) -> list[Event]:
        """Return the text that was held back, or none if output was cut: it may be half of a secret."""
        is_cut = result.truncated is not None and result.truncated.output_bytes > 0
        rest = self.rest()
        return [] if is_cut else rest


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


def _overlap(text: str, value: str) -> int:
    """Return the length of the longest end of `text` that is a beginning of `value`."""
    for size in range(min(len(value) - 1, len(text)), 0, -1):
        if text.endswith(value[:size]):
            return size
    return 0
