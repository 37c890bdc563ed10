"""Keeps the values of secrets out of what an execution brings. No I/O.

What a cell prints, shows or fails with is kept and told to others; a secret's value in it becomes
`***`, wherever it stands literally. A cell that means to can write it another way: this is against
mistakes, not against hostile code, which has the secret anyway.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from kernelbroker.protocol.codec import decode_incoming, encode
from kernelbroker.protocol.events import Event, Result, Stderr, Stdout

MASK = "***"
MIN_CHARS = 4
"""Shorter values are left alone: they stand in every other word."""


class Redactor:
    """One execution's. Give it every event in order; pass on what it gives back."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one may be the beginning of another.
        values = sorted({each for each in secrets if len(each) >= MIN_CHARS}, key=len, reverse=True)
        self._values = values
        self._in_text = _any_of(values)
        # As they stand within a JSON text, where quotes and the like are escaped.
        self._in_json = _any_of([encode(each).decode()[1:-1] for each in values])
        self._kept: dict[type[Stdout] | type[Stderr], str] = {}

    def events(self, event: Event) -> list[Event]:
        """The event without secrets; text may be held back until it is known how it goes on."""
        if not self._values:
            return [event]
        if isinstance(event, Stdout | Stderr):
            return self._text(type(event), event.content)
        before: list[Event] = []
        if isinstance(event, Result):
            for kind, rest in self._kept.items():
                before += [kind(content=rest)] if rest else []
            self._kept.clear()
        data = encode(event).decode()
        masked = self._in_json.sub(MASK, data)
        if masked != data:
            clean = decode_incoming(masked)
            assert isinstance(clean, type(event)), "a mask fits where a text stood"
            event = clean
        return [*before, event]

    def _text(self, kind: type[Stdout] | type[Stderr], content: str) -> list[Event]:
        text = self._in_text.sub(MASK, self._kept.pop(kind, "") + content)
        begun = max((_overlap(text, value) for value in self._values), default=0)
        if begun:
            self._kept[kind], text = text[-begun:], text[:-begun]
        return [kind(content=text)] if text else []


def _any_of(texts: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, texts)) or r"(?!)")


def _overlap(text: str, value: str) -> int:
    """The characters at the end of `text` with which `value` may have begun."""
    for size in range(min(len(value) - 1, len(text)), 0, -1):
        if text.endswith(value[:size]):
            return size
    return 0
