"""Any object as a short text. User code can run here only, in `repr` and `str`.

An error in that code becomes part of the text, and a long text is cut.
"""

from __future__ import annotations

import reprlib
import sys
from collections.abc import Callable
from itertools import islice
from typing import Any

from .introspection import type_name

ELLIPSIS = "…"


def cut(text: str, limit: int) -> str:
    """At most `limit` characters. The last one is an ellipsis if something was cut."""
    return text if len(text) <= limit else text[: limit - 1] + ELLIPSIS


class _BoundedRepr(reprlib.Repr):
    """`repr` whose cost does not grow with a builtin container. Other objects use their own `repr`."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = limit
        self.maxdict = self.maxlist = self.maxtuple = self.maxdeque = self.maxarray = 30

    def repr_instance(self, value: object, _level: int) -> str:
        return _shown(repr, value, self.maxother)

    def repr_dict(self, value: dict[Any, Any], level: int) -> str:
        """In the dict's own order; the stock method sorts all keys to show a few."""
        shown = list(islice(dict.items(value), self.maxdict)) if level > 0 else []
        parts = [
            f"{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}" for key, item in shown
        ]
        if len(shown) < dict.__len__(value):
            parts.append("...")
        return f"{{{', '.join(parts)}}}"

    def repr_set(self, value: set[Any], level: int) -> str:
        shown = list(islice(set.__iter__(value), self.maxlist))
        return f"{{{self.repr_list(shown, level)[1:-1]}}}" if shown else "set()"

    def repr_frozenset(self, value: frozenset[Any], level: int) -> str:
        shown = set(islice(frozenset.__iter__(value), self.maxlist))
        return f"frozenset({self.repr_set(shown, level) if shown else ''})"

    def repr_bytes(self, value: bytes, _level: int) -> str:
        return repr(value[: self.maxother])

    def repr_bytearray(self, value: bytearray, _level: int) -> str:
        return repr(value[: self.maxother])

    def repr_ndarray(self, value: Any, _level: int) -> str:
        with sys.modules["numpy"].printoptions(
            threshold=1_000
        ):  # a user may have set it to show all items
            return repr(value)


def safe_repr(value: object, limit: int) -> str:
    """`repr`, cut to `limit` characters."""
    return _shown(_BoundedRepr(limit).repr, value, limit)


def safe_text(value: object, limit: int) -> str:
    """`str`, cut to `limit` characters, for labels and the like."""
    return _shown(str, value, limit)


def _shown(show: Callable[[object], str], value: object, limit: int) -> str:
    """The text that `show` makes of the value. An error becomes part of the text.

    Only an interrupt is raised, so that a `repr` that hangs can be ended.
    """
    try:
        return cut(str.__str__(show(value)), limit)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return cut(f"<{type_name(value)} whose repr raised {type_name(error)}>", limit)
