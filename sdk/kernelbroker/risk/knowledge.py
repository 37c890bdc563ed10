"""What is known of code while it is judged, in any language: what its expressions stand for, and its names.

All is bounded: beyond a few values, or nested too deep, an expression is `UNKNOWN`.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, ClassVar, Generic, TypeVar

from .report import Report
from .values import UNKNOWN, Unknown, size

V = TypeVar("V")
K = TypeVar("K", bound=Hashable)


class Knowledge(Generic[V]):
    """Evaluates each expression once, until what is known of names has changed."""

    _MOST: ClassVar[int]
    """Values of one expression, or name."""
    _DEEPEST: ClassVar[int]

    def __init__(self, report: Report) -> None:
        self._report = report
        self._memo: dict[int, tuple[V | Unknown, ...]] = {}
        self._depth = 0
        self._changed = False
        self._settled = False
        """All that can be known of the names is; what is not known now is known at run time only."""

    def values(self, node: Any) -> tuple[V | Unknown, ...]:
        """Everything that an expression may stand for; never nothing, but for no node."""
        if node is None:
            return ()
        key = self._key(node)
        known = self._memo.get(key)
        if known is not None:
            return known
        if self._depth > self._DEEPEST:
            self._report.add("depth", "medium", "could not be judged: it is nested too deep")
            return (UNKNOWN,)
        self._memo[key] = ()  # for what stands for itself
        self._depth += 1
        found: dict[V | Unknown, None] = {}
        try:
            for value in self._evaluate(node):
                if len(found) >= self._MOST and value not in found:
                    found[UNKNOWN] = None
                    break
                found[value] = None
        finally:
            self._depth -= 1
        self._report.spend(size(found))
        self._memo[key] = tuple(found) or (UNKNOWN,)
        return self._memo[key]

    def _note(
        self, table: dict[K, dict[V | Unknown, None]], key: K, values: Iterable[V | Unknown]
    ) -> None:
        """Remember in a table what else a name may stand for."""
        known = table.setdefault(key, {})
        for value in values:
            if value is UNKNOWN and not self._settled:
                continue  # it may be known yet
            if value not in known and len(known) >= self._MOST:
                value = UNKNOWN
            if value not in known:
                known[value] = None
                self._changed = True

    def _key(self, node: Any) -> int:
        """What tells one node from all others."""
        raise NotImplementedError

    def _evaluate(self, node: Any) -> Iterable[V | Unknown]:
        raise NotImplementedError
