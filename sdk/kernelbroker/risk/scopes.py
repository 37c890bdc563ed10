"""Whose a name is: the function's that binds it, or the module's.

Names of the same spelling in different functions have nothing to do with each other, so that what a
parameter is given says nothing of a variable elsewhere.
"""

from __future__ import annotations

import ast
from typing import TypeAlias

from .values import Place

Key: TypeAlias = tuple[int, str]
"""A name, and by the `id` of its node the function that it is local to; 0 for the module."""
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


class Scopes:
    """The scopes of a tree. Classes have none of their own, nor have comprehensions."""

    def __init__(self, places: list[Place]) -> None:
        self._function: dict[int, ast.AST | None] = {}
        self._outer: dict[int, ast.AST | None] = {}
        self._own: dict[int, set[str]] = {}
        declared: dict[int, set[str]] = {}
        for node, function, _ in places:
            if isinstance(node, FUNCTIONS):
                self._outer[id(node)] = function
                self._own.setdefault(id(node), set()).update(arg.arg for arg in parameters(node))
            if function is None:
                continue
            if isinstance(node, ast.Name):
                self._function[id(node)] = function
            if isinstance(node, ast.Global | ast.Nonlocal):
                declared.setdefault(id(function), set()).update(node.names)
            self._own.setdefault(id(function), set()).update(_bound_by(node))
        for function_id, names in declared.items():
            self._own[function_id] -= names

    def of(self, node: ast.Name) -> Key:
        """The key of a name where it stands."""
        return self.key(node.id, self._function.get(id(node)))

    def key(self, name: str, function: ast.AST | None) -> Key:
        """The key of a name in a function, or in the module."""
        while function is not None and name not in self._own[id(function)]:
            function = self._outer[id(function)]
        return (0 if function is None else id(function), name)


def parameters(function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> list[ast.arg]:
    args = function.args
    gathering = [arg for arg in (args.vararg, args.kwarg) if arg is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *gathering]


def _bound_by(node: ast.AST) -> list[str]:
    match node:
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return [name]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
            return [name]
        case ast.ExceptHandler(name=str(name)):
            return [name]
        case ast.Import(names=aliases):
            return [alias.asname or alias.name.partition(".")[0] for alias in aliases]
        case ast.ImportFrom(names=aliases):
            return [alias.asname or alias.name for alias in aliases]
    return []
