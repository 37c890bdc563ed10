"""Sums and lists of values, and what is in them.

`settled` says that all is known that can be. Before, a list of which some is not known is not known itself:
it would stay beside the list that it becomes.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Any

from . import folding
from .values import MAX_VALUES, UNKNOWN, Box, Const, Partial, Unknown, Value

_MAX_VARIED = 64
"""Items of a list that is looked at with each value of each of them."""


def summed(
    op: ast.operator, first: list[Value], others: Iterable[list[Value]], *, settled: bool
) -> list[Value]:
    """`a op b op c`, in all ways that these may be; of too many, some and `UNKNOWN`."""
    sums = first
    for terms in others:
        pairs = list(islice(product(sums, terms), MAX_VALUES + 1))
        known = (added(op, *pair, settled=settled) for pair in pairs[:MAX_VALUES])
        more = [UNKNOWN] if len(pairs) > MAX_VALUES else []
        sums = list(dict.fromkeys([*known, *more]))
    return sums


def added(op: ast.operator, left: Value, right: Value, *, settled: bool) -> Value:
    """`left op right`; a list is a list whatever is added to it."""
    if isinstance(left, Const) and isinstance(right, Const):
        folded = folding.binary(op, left.value, right.value)
        return UNKNOWN if folded is None else Const(folded)
    items, more = list_of(left), list_of(right) or (UNKNOWN,)
    if items is None or not isinstance(op, ast.Add):
        return UNKNOWN
    ends_open = items[-1:] == more == (UNKNOWN,)
    return left if ends_open else as_list([*items, *more], settled=settled)


def listed(items: Iterable[list[tuple[Any, ...]]], count: int, *, settled: bool) -> list[Value]:
    """A list, in all ways that its `count` items may be; each is given by what it may add to it."""
    rows: list[list[Any]] = [[]]
    for choices in items:
        if len(choices) > 1 and len(rows) * len(choices) <= MAX_VALUES and count <= _MAX_VARIED:
            rows = [[*row, *choice] for row in rows for choice in choices]
        else:
            for row in rows:
                row.extend(choices[0] if len(choices) == 1 else (UNKNOWN,))
        if len(rows[0]) > folding.MAX_ITEMS:
            return [UNKNOWN]
    return [as_list(row, settled=settled) for row in rows]


def as_list(items: list[Any], *, settled: bool) -> Value:
    """A list of items of which some may be `UNKNOWN`."""
    if folding.bounded(tuple(items)) is None:
        return UNKNOWN
    if any(item is UNKNOWN for item in items):
        return Partial(tuple(items)) if settled else UNKNOWN
    return Const(tuple(items))


def list_of(value: Value) -> tuple[Any, ...] | None:
    """The items of a list; None where it is none."""
    if isinstance(value, Partial):
        return value.items
    if isinstance(value, Const) and isinstance(value.value, tuple):
        return value.value
    return None


def unboxed(values: Iterable[Value]) -> Iterator[Value]:
    for value in values:
        if isinstance(value, Box):
            yield value.content
        elif isinstance(value, Const) and isinstance(value.value, tuple | str):
            yield from (Const(item) for item in _different(value.value))
        elif isinstance(value, Partial):
            yield from map(as_value, _different(value.items))
        else:
            yield value


def _different(items: Iterable[Any]) -> list[Any]:
    """As many as show that there are too many."""
    return list(dict.fromkeys(items))[: MAX_VALUES + 1]


def as_value(item: Any) -> Value:
    """An item of a list as a value of its own."""
    return item if isinstance(item, Unknown) else Const(item)


def item_of(value: Value, index: int, count: int) -> Iterator[Value]:
    """What the name at `index` of `count` gets where a value is unpacked."""
    items = list_of(value)
    if items is not None and len(items) == count:
        yield as_value(items[index])
    else:
        yield from unboxed((value,))
