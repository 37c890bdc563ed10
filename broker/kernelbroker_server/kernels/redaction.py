"""Keeps the values of secrets out of what an execution brings. No I/O.

What a cell prints, shows or fails with is kept and told to others; a secret's value in it becomes
`***`, wherever it stands in a text: as it is, quoted as Python or JSON quote it, or, if it has
several lines, line by line. A cell that means to can write it another way: this is against mistakes,
not against hostile code, which has the secret anyway.
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
"""Shorter values are left alone: they stand in every other word."""

_OUR_WORDS = frozenset({"execution_id", "status", "cause", "rule", "level", "language", "mime"})
"""Fields with words of the protocols."""
_BINARY = ("image/", "audio/", "video/", "application/pdf", "application/octet-stream")


class Redactor:
    """One execution's. Give it every event in order; pass on what it gives back."""

    def __init__(self, secrets: Iterable[str]) -> None:
        values = {form for secret in secrets if len(secret) >= MIN_CHARS for form in _forms(secret)}
        # The longest first: one may be the beginning of another.
        self._values = sorted(values, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, self._values)) or r"(?!)")
        self._kept: dict[type[Stdout] | type[Stderr], str] = {}

    def events(self, event: Event) -> list[Event]:
        """The event without secrets; text may be held back until it is known how it goes on."""
        if not self._values:
            return [event]
        match event:
            case Stdout() | Stderr():
                return self._text(type(event), event.content)
            case Image(mime=mime) if _is_binary(mime):
                return [event]
            case Display():
                data = {
                    mime: content if _is_binary(mime) else self.clean(content)
                    for mime, content in event.data.items()
                }
                rest = self.clean(msgspec.structs.replace(event, data={}))
                return [msgspec.structs.replace(rest, data=data)]
            case Result():
                return [*self._held_back(event), self.clean(event)]
        return [self.clean(event)]

    def clean(self, value: Any) -> Any:
        """A value without secrets, of the same type: text, JSON of any kind, or a struct."""
        if not self._values:
            return value
        try:
            return self._clean(value)
        except RecursionError:  # nobody nests so deep who does not mean to
            return type(value)()

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

    def _text(self, kind: type[Stdout] | type[Stderr], content: str) -> list[Event]:
        text = self._pattern.sub(MASK, self._kept.pop(kind, "") + content)
        begun = max((_overlap(text, value) for value in self._values), default=0)
        if begun:
            self._kept[kind], text = text[-begun:], text[:-begun]
        return [kind(content=text)] if text else []

    def _held_back(self, result: Result) -> list[Event]:
        """What was no value in the end; or, where output was cut, perhaps the beginning of one."""
        kept, self._kept = self._kept, {}
        is_cut = result.truncated is not None and result.truncated.output_bytes > 0
        return [] if is_cut else [kind(content=text) for kind, text in kept.items()]


def _forms(secret: str) -> Iterator[str]:
    """What is to be masked."""
    yield secret
    yield repr(secret)[1:-1]
    yield json.dumps(secret)[1:-1]
    yield json.dumps(secret, ensure_ascii=False)[1:-1]
    yield from (line for each in secret.splitlines() if len(line := each.strip()) >= MIN_CHARS)


def _is_binary(mime: str) -> bool:
    """Whether it is sent as base64, in which a value of a few letters stands by chance."""
    return mime.startswith(_BINARY) and mime != "image/svg+xml"


def _overlap(text: str, value: str) -> int:
    """The characters at the end of `text` with which `value` may have begun."""
    for size in range(min(len(value) - 1, len(text)), 0, -1):
        if text.endswith(value[:size]):
            return size
    return 0
