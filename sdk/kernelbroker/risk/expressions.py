"""What the expressions of Python code stand for, once it is known what its names do.

What is known at run time only is `UNKNOWN`: by itself, or beside what else an expression may stand for.
Text is put together as the code would; nothing of the code is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, TypeAlias

from . import folding
from .knowledge import Knowledge
from .lists import as_list, as_value, list_of, listed, summed, unboxed
from .python_rules import KNOWN_BUILTINS, TEXTS, USUAL
from .report import Report
from .scopes import Key, Scopes
from .values import (
    DOWNLOAD,
    GLOBALS,
    MAX_VALUES,
    UNKNOWN,
    Box,
    Const,
    Function,
    Getter,
    Partial,
    Ref,
    Value,
    as_slice,
    canonical,
    member,
)

OwnFunction: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Expressions(Knowledge[Value]):
    """Evaluates expressions. What calls give is for `results`, what names are bound to for `names`."""

    _MOST = MAX_VALUES
    _DEEPEST = 80

    def __init__(self, scopes: Scopes, report: Report) -> None:
        super().__init__(report)
        self._scopes = scopes
        self._bound: dict[Key, dict[Value, None]] = {}
        self._attributes: dict[str, dict[Value, None]] = {}
        self._own: set[str] = set()

    def _key(self, node: ast.AST) -> int:
        return id(node)

    def is_unsure(self, *nodes: ast.AST | None) -> bool:
        """Whether one of these may be something that is no constant, or is missing."""
        return any(UNKNOWN in self.terms(node) for node in nodes)

    def refs(self, node: ast.AST | None) -> list[str]:
        return [value.name for value in self.values(node) if isinstance(value, Ref)]

    def constants(self, node: ast.AST | None) -> list[Any]:
        return [term.value for term in self.terms(node) if isinstance(term, Const)]

    def texts(self, node: ast.AST | None) -> list[str]:
        """The constant strings; bytes as the text they are."""
        found = []
        for value in self.constants(node):
            if isinstance(value, bytes):
                value = value.decode("utf-8", "replace")
            if isinstance(value, str):
                found.append(value)
        return found

    def _evaluate(self, node: ast.AST) -> Iterator[Value]:
        match node:
            case ast.Constant(value=value):
                if value is None or folding.bounded(value) is not None:
                    yield Const(value)
            case ast.Name():
                yield from self._named(self._scopes.of(node))
            case ast.Attribute(value=base, attr=name):
                yield from self.member(base, name)
            case ast.Subscript(value=base, slice=index):
                yield from self._subscript(base, index)
            case ast.Call():
                yield from self._call(node)
            case ast.BinOp(op=op):
                yield from self._binary(node, op)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                yield from (Const(-v) for v in self.constants(operand) if isinstance(v, int))
            case ast.JoinedStr(values=parts):
                yield from self._joined(parts)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                yield from self._sequence(items)
            case ast.Dict(values=items):
                yield from (Box(v) for item in items for v in self._handles(item))
            case ast.ListComp(elt=item) | ast.GeneratorExp(elt=item) | ast.SetComp(elt=item):
                yield from self._comprehension(node, item)
            case ast.IfExp(body=body, orelse=other):
                yield from self.values(body) + self.values(other)
            case ast.BoolOp(values=operands):
                for operand in operands:
                    yield from self.values(operand)
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                yield from self.values(value)
            case ast.Lambda():
                yield Function(id(node))

    def _call(self, node: ast.Call) -> Iterator[Value]:
        raise NotImplementedError

    def _named(self, key: Key) -> Iterator[Value]:
        yield from self._bound.get(key, ())
        function, name = key
        if function:
            return
        if name in KNOWN_BUILTINS and name not in self._own:
            yield Ref(KNOWN_BUILTINS[name])
        elif name in USUAL and key not in self._bound:
            yield Ref(USUAL[name])  # imported by an earlier cell

    def member(self, base: ast.expr, name: str) -> Iterator[Value]:
        """The values of `base.name`."""
        found = False
        for value in self.values(base):
            if isinstance(value, Ref):
                yield member(value, name)
                found = True
            elif isinstance(value, Function) and name in ("__call__", "__func__"):
                yield value
            elif isinstance(value, Const) and name == "path":
                yield value  # of what `scandir` gives
        if not found:
            yield from self._attributes.get(name, ())

    def _subscript(self, base: ast.expr, index: ast.expr) -> Iterator[Value]:
        keys = self.constants(index)
        for value in self.values(base):
            match value:
                case Ref(name=name) if name == GLOBALS or name.endswith(".__dict__"):
                    for key in keys:
                        if isinstance(key, str):
                            yield from self._entry(name, key)
                case Ref(name="builtins"):
                    yield from (Ref(f"builtins.{key}") for key in keys if isinstance(key, str))
                case Ref(name="sys.modules"):
                    yield from (Ref(canonical(key)) for key in keys if isinstance(key, str))
                case Ref(name="os.environ") if "HOME" in keys:
                    yield Const("~")
                case Ref(name=name) if name == DOWNLOAD:
                    yield value
                case Box(content=content):
                    yield content
                case Const(value=constant):
                    indices = [as_slice(index)] if isinstance(index, ast.Slice) else keys
                    folded = (folding.subscript(constant, key) for key in indices)
                    yield from (Const(f) if f is not None else UNKNOWN for f in folded)
                case Partial(items=items) if 0 in keys:
                    yield as_value(items[0])
                case _:
                    yield UNKNOWN
        if keys and self.is_unsure(index):
            yield UNKNOWN

    def _entry(self, namespace: str, key: str) -> Iterator[Value]:
        """A name in `globals()`, or in the `__dict__` of a module."""
        if namespace == GLOBALS:
            yield from self._named((0, key))
        else:
            yield member(Ref(namespace.removesuffix(".__dict__")), key)

    def _binary(self, node: ast.BinOp, op: ast.operator) -> Iterator[Value]:
        # A long sum leans to the left; it is not gone down by recursion.
        operands: list[ast.expr] = []
        first: ast.expr = node
        while isinstance(first, ast.BinOp) and type(first.op) is type(op):
            operands.append(first.right)
            first = first.left
        others = (self.terms(operand) for operand in reversed(operands))
        yield from summed(op, self.terms(first), others, settled=self._settled)

    def terms(self, node: ast.AST | None) -> list[Value]:
        """What can be reckoned with of an expression's values; all else is `UNKNOWN`."""
        terms: dict[Value, None] = {}
        for value in self.values(node):
            match value:
                case Const() | Partial():
                    terms[value] = None
                case Ref(name=name) if name in TEXTS:
                    terms[Const(TEXTS[name])] = None
                case Box():
                    pass  # the list that it is in stands beside it
                case _:
                    terms[UNKNOWN] = None
        return list(terms) or [UNKNOWN]

    def _joined(self, parts: list[ast.expr]) -> Iterator[Value]:
        pieces = (self._piece(part) for part in parts)
        yield from summed(ast.Add(), [Const("")], pieces, settled=self._settled)

    def _piece(self, part: ast.expr) -> list[Value]:
        """A part of an f-string as text."""
        if not isinstance(part, ast.FormattedValue):
            return self.terms(part)
        if part.format_spec is not None:
            return [UNKNOWN]
        terms = self.terms(part.value)
        return [Const(str(term.value)) if isinstance(term, Const) else UNKNOWN for term in terms]

    def _sequence(self, items: list[ast.expr]) -> Iterator[Value]:
        for item in items:
            yield from (Box(value) for value in self._handles(item))
        yield from self.listed(items)

    def listed(self, items: list[ast.expr]) -> list[Value]:
        """The list of these, in the ways that it may be."""
        choices = (self.choices(item) for item in items)
        return listed(choices, len(items), settled=self._settled)

    def choices(self, item: ast.expr) -> list[tuple[Any, ...]]:
        """What an item may add to a list: usually one thing, in one way."""
        if isinstance(item, ast.Starred):
            given = dict.fromkeys(list_of(term) or (UNKNOWN,) for term in self.terms(item.value))
        else:
            given = dict.fromkeys(
                (term.value if isinstance(term, Const) else UNKNOWN,) for term in self.terms(item)
            )
        return list(given)

    def _comprehension(self, node: ast.AST, item: ast.expr) -> Iterator[Value]:
        """`chr(c) for c in [...]`, item by item; else whatever the item stands for."""
        yield from (Box(value) for value in self._handles(item))
        generators = getattr(node, "generators", [])
        match item, generators:
            case (
                ast.Call(func=func, args=[ast.Name(id=name)]),
                [ast.comprehension(target=ast.Name(id=target), iter=source, ifs=[])],
            ) if name == target and "builtins.chr" in self.refs(func):
                for items in self.constants(source):
                    if isinstance(items, tuple | bytes):
                        letters = [
                            folding.call("builtins.chr", (i,)) for i in items[: folding.MAX_ITEMS]
                        ]
                        yield as_list(letters, settled=self._settled)

    def _items(self, node: ast.expr) -> Iterator[Value]:
        """What a loop over this gets."""
        for value in unboxed(self.values(node)):
            yield UNKNOWN if isinstance(value, Ref) and value.name != DOWNLOAD else value

    def _handles(self, node: ast.expr | None) -> Iterator[Ref | Function | Getter]:
        for value in self.values(node):
            if isinstance(value, Ref | Function | Getter):
                yield value
