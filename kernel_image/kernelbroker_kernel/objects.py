"""What can be told of a user's object without running the user's code.

`type(x)` cannot lie, `x.__class__`, `len(x)` and `isinstance(x, …)` can, hang or raise. So objects
are told apart by their true type alone, and measured by what the library's own class says of them.
Libraries are only looked up, never imported: whoever holds a DataFrame has pandas loaded.
"""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from types import ModuleType
from typing import Any

TYPE_NAME_CHARS = 100

_SIZED = frozenset(
    {
        *(str, bytes, bytearray, list, tuple, dict, set, frozenset, range),
        *(deque, Counter, defaultdict, OrderedDict),
    }
)
"""Exact types whose `len` is the interpreter's own; never a class derived from them."""

_SHAPED = (
    ("numpy", "ndarray"),
    ("pandas", "DataFrame"),
    ("pandas", "Series"),
    ("pandas", "Index"),
    ("polars", "DataFrame"),
    ("polars", "Series"),
    ("pyarrow", "Table"),
    ("pyarrow", "RecordBatch"),
)

_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__


def type_name(value: object) -> str:
    """The short name of the value's class, past what a metaclass makes of `__name__`."""
    kind = type(value)
    name = "type" if issubclass(kind, type) else _name_of(kind)
    return name[:TYPE_NAME_CHARS]


def library_class(module: str, name: str) -> type | None:
    """A class of a library, if the library is loaded."""
    loaded = sys.modules.get(module)
    found = loaded.__dict__.get(name) if type(loaded) is ModuleType else None
    return found if isinstance(found, type) else None


def is_a(value: object, module: str, name: str) -> bool:
    """Whether the value is truly an instance of a library's class."""
    known = library_class(module, name)
    return known is not None and issubclass(type(value), known)


def length(value: object) -> int | None:
    """How many items a builtin container or text holds; null for everything else."""
    if type(value) not in _SIZED:
        return None
    try:
        return len(value)  # type: ignore[arg-type]
    except OverflowError:  # range(10**30)
        return None


class Shapes:
    """Tells the shape of arrays and tables, of the libraries that are loaded at this moment."""

    def __init__(self) -> None:
        found = [library_class(module, name) for module, name in _SHAPED]
        self._classes = tuple(known for known in found if known is not None)
        self._by_type: dict[type, type | None] = {}

    def shape(self, value: object) -> list[int] | None:
        """Rows and columns, or an array's dimensions; null for what has none or does not tell."""
        kind = type(value)
        if kind not in self._by_type:
            bases = (known for known in self._classes if issubclass(kind, known))
            self._by_type[kind] = next(bases, None)
        known = self._by_type[kind]
        if known is None:
            return None
        try:
            # The library's own property: a derived class may have put anything in its place.
            shape: Any = known.shape.__get__(value)  # type: ignore[attr-defined]
            return [int(size) for size in shape]
        except Exception:
            return None
