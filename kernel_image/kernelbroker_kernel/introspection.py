"""Properties of a user's object, without running the user's code.

`type(x)` is always correct. `x.__class__`, `len(x)` and `isinstance(x, …)` can be overridden, and can hang
or raise. So the kind of an object is decided by `type(x)`, and its size by the library's own class.
Libraries are looked up and never imported: a DataFrame exists only if pandas is loaded.
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
"""Exact types whose `len` is the interpreter's own, without derived classes."""

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
    """The short name of the value's class, even if a metaclass overrides `__name__`."""
    kind = type(value)
    name = "type" if issubclass(kind, type) else _name_of(kind)
    return name[:TYPE_NAME_CHARS]


def library_class(module: str, name: str) -> type | None:
    """A class of a library, if the library is loaded."""
    loaded = sys.modules.get(module)
    found = loaded.__dict__.get(name) if type(loaded) is ModuleType else None
    return found if isinstance(found, type) else None


def is_a(value: object, module: str, name: str) -> bool:
    """Whether the value's true type is a library's class, or derived from it."""
    known = library_class(module, name)
    return known is not None and issubclass(type(value), known)


def length(value: object) -> int | None:
    """The length of a builtin container or text; None for any other object."""
    if type(value) not in _SIZED:
        return None
    try:
        return len(value)  # type: ignore[arg-type]
    except OverflowError:  # range(10**30)
        return None


def levels_of(index: Any) -> list[Any]:
    """The levels of row or column labels of pandas. Not by name: a level may be named 0."""
    unnamed = index.set_names([None] * index.nlevels)
    return [unnamed.get_level_values(level) for level in range(index.nlevels)]


def labels_of(index: Any) -> list[Any]:
    """The labels of pandas as Python objects; as texts, if one is beyond Python's calendar."""
    try:
        return list(index)
    except (ArithmeticError, ValueError, NotImplementedError):
        return list(index.astype(str))


class Shapes:
    """The shapes of arrays and tables, for the libraries that are loaded when it is made."""

    def __init__(self) -> None:
        found = [library_class(module, name) for module, name in _SHAPED]
        self._classes = tuple(known for known in found if known is not None)
        self._by_type: dict[type, type | None] = {}

    def shape(self, value: object) -> list[int] | None:
        """Rows and columns, or an array's dimensions; None if there are none or they cannot be read."""
        kind = type(value)
        if kind not in self._by_type:
            bases = (known for known in self._classes if issubclass(kind, known))
            self._by_type[kind] = next(bases, None)
        known = self._by_type[kind]
        if known is None:
            return None
        try:
            # The library's own property: a derived class may override it.
            shape: Any = known.shape.__get__(value)  # type: ignore[attr-defined]
            return [int(size) for size in shape]
        except KeyboardInterrupt:
            raise
        except BaseException:  # a property of a derived class may raise SystemExit
            return None
