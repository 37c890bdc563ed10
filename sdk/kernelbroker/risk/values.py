"""What an expression may stand for, and the nodes of a tree with what they stand in."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

from .python_rules import SAME_AS
from .report import Report

DOWNLOAD = "<download>"
GLOBALS = "<globals>"
MAX_VALUES = 12
_ELSEWHERE = {"os", "sys", "subprocess", "builtins", "ctypes", "importlib", "pty", "shutil"}
"""Modules that other modules hold under their names: `shutil.os` is `os`."""


class Ref(NamedTuple):
    """A thing by its full name, such as `os.system`."""

    name: str


class Const(NamedTuple):
    value: Any


class Box(NamedTuple):
    """Something inside a list, a dict or an iterator."""

    content: Ref | Function | Getter


class Function(NamedTuple):
    """A function or lambda of the code's own."""

    key: int


class Getter(NamedTuple):
    """`operator.attrgetter(name)`."""

    name: str


Value: TypeAlias = Ref | Const | Box | Function | Getter
Values: TypeAlias = frozenset[Value]
NOTHING: Values = frozenset()


class Place(NamedTuple):
    """A node, and what it stands in."""

    node: ast.AST
    function: ast.AST | None
    in_loop: bool


def walk(tree: ast.AST, report: Report) -> Iterator[Place]:
    """All nodes, parents first, without recursion."""
    waiting = [Place(tree, None, False)]
    while waiting:
        place = waiting.pop()
        report.spend()
        yield place
        node, function, in_loop = place
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            function = node
        elif isinstance(node, ast.While | ast.For | ast.comprehension | ast.AsyncFor):
            in_loop = True
        children = [Place(child, function, in_loop) for child in ast.iter_child_nodes(node)]
        waiting.extend(reversed(children))


def canonical(module: str) -> str:
    first, dot, rest = module.partition(".")
    return SAME_AS.get(module) or SAME_AS.get(first, first) + dot + rest


def member(ref: Ref, name: str) -> Ref:
    base = ref.name
    if name == "__call__" or base == DOWNLOAD:
        return ref
    if name == "__self__" and base.startswith("builtins."):
        return Ref("builtins")
    if name in ("__builtins__", "f_builtins"):
        return Ref("builtins")
    if name in ("__globals__", "f_globals", "f_locals"):
        return Ref(GLOBALS)
    if name in ("__loader__", "BuiltinImporter"):
        return Ref("<loader>")
    plain = name.removeprefix("_")
    if plain in _ELSEWHERE and base.rpartition(".")[2] != plain and not base.startswith("<"):
        return Ref(plain)
    full = f"{base}.{name}"
    return Ref(SAME_AS.get(full) or full)


def unboxed(values: Iterable[Value]) -> Iterator[Value]:
    for value in values:
        if isinstance(value, Box):
            yield value.content
        elif isinstance(value, Const) and isinstance(value.value, tuple | str):
            yield from (Const(item) for item in value.value[:MAX_VALUES])
        else:
            yield value


def as_slice(node: ast.Slice) -> slice | None:
    parts: list[int | None] = []
    for part in (node.lower, node.upper, node.step):
        match part:
            case None:
                parts.append(None)
            case ast.Constant(value=int(number)):
                parts.append(number)
            case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(number))):
                parts.append(-number)
            case _:
                return None
    return slice(*parts)
