"""What looking into calls has in common: the arguments, what they stand for, and where findings go."""

from __future__ import annotations

import ast
from typing import Any

from ..protocol.findings import Level
from .names import Names
from .report import Report


class Looks:
    """Looks into the calls of one tree."""

    def __init__(self, names: Names, report: Report) -> None:
        self._names = names
        self._report = report

    def _nested(self, code: str, language: Any, node: ast.AST) -> Level:
        return self._report.judge_nested(code, language, *_place(node))

    def _texts(self, node: ast.AST | None) -> list[str]:
        return self._names.texts(node)

    def _all_refs(self, node: ast.AST | None) -> list[str]:
        """Of the expression, and of what an `|` in it joins."""
        if isinstance(node, ast.BinOp):
            return self._all_refs(node.left) + self._all_refs(node.right)
        return self._names.refs(node)

    def _add(self, node: ast.AST, rule: str, level: Level, reason: str) -> None:
        self._report.add(rule, level, reason, *_place(node))


def argument(node: ast.Call, index: int, *names: str) -> ast.expr | None:
    """An argument by its place or by one of its names."""
    if len(node.args) > index and not any(
        isinstance(a, ast.Starred) for a in node.args[: index + 1]
    ):
        return node.args[index]
    return next((keyword.value for keyword in node.keywords if keyword.arg in names), None)


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
