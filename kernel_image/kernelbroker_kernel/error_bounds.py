"""Bounds for the name, the value and the traceback of an error.

An error of unbounded size would exceed the gateway's limit, and the cell's failure would be lost. The
broker cuts further, after it has masked secrets, so these bounds are wider than the broker's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .safe_repr import cut, safe_text

NAME_CHARS = 1_000
VALUE_CHARS = 100_000
TRACEBACK_CHARS = 1_000_000
"""A character takes at most 12 bytes in a message, whose bound is `contract.MAX_MESSAGE_BYTES`."""


def bounded_error(name: object, value: object, traceback: object) -> dict[str, Any]:
    """The fields `ename`, `evalue` and `traceback` of a Jupyter error, of bounded size.

    `value` may be the exception itself; one whose `str` raises is described. Of a long traceback the
    first entry and the last ones are kept, as the innermost frames and the message come last.
    """
    entries = traceback if isinstance(traceback, Sequence) and type(traceback) is not str else ()
    return {
        "ename": safe_text(name, NAME_CHARS),
        "evalue": safe_text(value, VALUE_CHARS),
        "traceback": _bounded(entries),
    }


def _bounded(entries: Sequence[object]) -> list[str]:
    first = [safe_text(entry, VALUE_CHARS) for entry in entries[:1]]
    left = TRACEBACK_CHARS - sum(map(len, first))
    last: list[str] = []
    for entry in reversed(entries[1:]):
        text = safe_text(entry, VALUE_CHARS)
        left -= len(text) + 1
        if left < 0:
            break
        last.append(text)
    dropped = len(entries) - len(first) - len(last)
    middle = [cut(f"... {dropped} entries dropped ...", 100)] if dropped > 0 else []
    return first + middle + last[::-1]
