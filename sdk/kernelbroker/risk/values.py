"""What an expression may stand for, and the nodes of a tree with what they stand in."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from .python_rules import SAME_AS
from .report import Report

DOWNLOAD = "<download>"
GLOBALS = "<globals>"
MAX_VALUES = 12
_ELSEWHERE = {"os", "sys", "subprocess", "builtins", "ctypes", "importlib", "pty", "shutil"}
"""Modules that other modules hold under their names: `shutil.os` is `os`."""


@dataclass(frozen=True, slots=True)
class Ref:
    """A thing by its full name, such as `os.system`."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    value: Any


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that is known at run time only."""


UNKNOWN = Unknown()


@dataclass(frozen=True, slots=True)
class Partial:
    """A list of which some is known; what is `UNKNOWN` in it may be none, one or several items."""

    items: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Box:
    """Something inside a list, a dict or an iterator."""

    content: Ref | Function | Getter


@dataclass(frozen=True, slots=True)
class Function:
    """A function or lambda of the code's own."""

    key: int


@dataclass(frozen=True, slots=True)
class Getter:
    """`operator.attrgetter(name)`."""

    name: str


Value: TypeAlias = Ref | Const | Unknown | Partial | Box | Function | Getter
Values: TypeAlias = tuple[Value, ...]
NOTHING: Values = ()


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
        body: set[int] = set()
        """What is the function's own: its defaults and decorators stand outside of it."""
        if isinstance(node, ast.Lambda):
            body = {id(node.body)}
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = set(map(id, node.body))
        elif isinstance(node, ast.While | ast.For | ast.comprehension | ast.AsyncFor):
            in_loop = True
        children = [
            Place(child, node if id(child) in body else function, in_loop)
            for child in ast.iter_child_nodes(node)
        ]
        waiting.extend(reversed(children))


def size(values: Iterable[object]) -> int:
    """Characters, and items of lists, in constants."""
    count = 0
    for value in values:
        if isinstance(value, Const) and isinstance(value.value, (str, bytes, tuple)):
            count += len(value.value)
    return count


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
