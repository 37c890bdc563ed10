"""What the expressions of Python code stand for, once it is known what its names do.

What is not known has no values. Text is put together as the code would; nothing of the code is called.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice, product
from typing import Any, TypeAlias

from . import folding
from .python_rules import KNOWN_BUILTINS, NETWORK, USUAL
from .report import Report
from .values import (
    DOWNLOAD,
    GLOBALS,
    MAX_VALUES,
    NOTHING,
    Box,
    Const,
    Function,
    Getter,
    Ref,
    Value,
    Values,
    as_slice,
    canonical,
    member,
    unboxed,
)

_MAX_DEPTH = 80

OwnFunction: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Expressions:
    """Evaluates expressions. What names are bound to is for `names.Names` to fill in."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._bound: dict[str, set[Value]] = {}
        self._attributes: dict[str, set[Value]] = {}
        self._functions: dict[int, OwnFunction] = {}
        self._returns: dict[int, list[ast.expr]] = {}
        self._own: set[str] = set()
        self._memo: dict[int, Values] = {}
        self._depth = 0

    def values(self, node: ast.AST | None) -> Values:
        """Everything that an expression may be known to stand for."""
        if node is None:
            return NOTHING
        known = self._memo.get(id(node))
        if known is not None:
            return known
        self._report.spend()
        if self._depth > _MAX_DEPTH:
            self._report.add("depth", "medium", "could not be judged: it is nested too deep")
            return NOTHING
        self._memo[id(node)] = NOTHING  # for what stands for itself
        self._depth += 1
        try:
            found = frozenset(islice(self._evaluate(node), MAX_VALUES))
        finally:
            self._depth -= 1
        self._memo[id(node)] = found
        return found

    def refs(self, node: ast.AST | None) -> list[str]:
        return [value.name for value in self.values(node) if isinstance(value, Ref)]

    def constants(self, node: ast.AST | None) -> list[Any]:
        return [value.value for value in self.values(node) if isinstance(value, Const)]

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
                if isinstance(value, str | bytes | int):
                    yield Const(value)
            case ast.Name(id=name):
                yield from self._named(name)
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
                yield from self.values(body) | self.values(other)
            case ast.BoolOp(values=operands):
                for operand in operands:
                    yield from self.values(operand)
            case ast.NamedExpr(value=value) | ast.Await(value=value) | ast.Starred(value=value):
                yield from self.values(value)
            case ast.Lambda():
                yield Function(id(node))

    def _named(self, name: str) -> Iterator[Value]:
        yield from self._bound.get(name, ())
        if name in KNOWN_BUILTINS and name not in self._own:
            yield Ref(KNOWN_BUILTINS[name])
        elif name in USUAL and name not in self._bound:
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
                    yield from (Const(f) for f in folded if f is not None)

    def _entry(self, namespace: str, key: str) -> Iterator[Value]:
        """A name in `globals()`, or in the `__dict__` of a module."""
        if namespace == GLOBALS:
            yield from self._named(key)
        else:
            yield member(Ref(namespace.removesuffix(".__dict__")), key)

    def _call(self, node: ast.Call) -> Iterator[Value]:
        func, args = node.func, node.args
        if isinstance(func, ast.Attribute):
            yield from self._method(func.value, func.attr, args)
        for value in self.values(func):
            match value:
                case Ref(name=name):
                    yield from self._known_call(name, args)
                case Getter(name=name):
                    yield from (member(Ref(r), name) for arg in args for r in self.refs(arg))
                case Function(key=key):
                    for returned in self._returns.get(key, ()):
                        yield from self.values(returned)

    def _known_call(self, name: str, args: list[ast.expr]) -> Iterator[Value]:
        first = args[0] if args else None
        match name:
            case "builtins.getattr" | "builtins.object.__getattribute__" | "inspect.getattr_static":
                if len(args) > 1 and first is not None:
                    for key in self.texts(args[1]):
                        yield from self.member(first, key)
                for default in args[2:]:
                    yield from self.values(default)
            case "builtins.__import__":
                yield from (Ref(canonical(m.partition(".")[0])) for m in self.texts(first))
            case "importlib.import_module" | "importlib.__import__" | "<loader>.load_module":
                yield from (Ref(canonical(module)) for module in self.texts(first))
            case "builtins.vars":
                yield from (Ref(f"{module}.__dict__") for module in self.refs(first))
                if first is None:
                    yield Ref(GLOBALS)
            case "builtins.globals" | "builtins.locals":
                yield Ref(GLOBALS)
            case "operator.attrgetter" | "operator.methodcaller":
                yield from (Getter(key) for key in self.texts(first))
            case "builtins.next" | "builtins.iter" | "functools.partial" | "importlib.reload":
                yield from unboxed(self.values(first))
            case "builtins.map" if len(args) == 2 and "builtins.chr" in self.refs(first):
                for items in self.constants(args[1]):
                    if isinstance(items, tuple):
                        yield Const(tuple(folding.call("builtins.chr", (i,)) for i in items))
            case "pathlib.Path" | "pathlib.PurePath" | "pathlib.PosixPath":
                yield from (Const(path) for path in self.texts(first))
            case "pathlib.Path.home":
                yield Const("~")
            case "os.getenv" if "HOME" in self.texts(first):
                yield Const("~")
            case "IPython.get_ipython":
                yield Ref("IPython.shell")
            case _ if name.startswith(DOWNLOAD) or name in NETWORK:
                yield Ref(DOWNLOAD)
            case _:
                for arguments in self._arguments(args):
                    if (folded := folding.call(name, arguments)) is not None:
                        yield Const(folded)

    def _method(self, base: ast.expr, name: str, args: list[ast.expr]) -> Iterator[Value]:
        """Calls of methods that pass on what they were called on."""
        if name in ("get", "__getitem__", "pop") and args:
            yield from self._subscript(base, args[0])
        elif name == "__getattribute__" and args:
            for key in self.texts(args[-1]):
                yield from self.member(base if len(args) == 1 else args[0], key)
        elif name in ("joinpath", "expanduser", "resolve", "absolute") and self.texts(base):
            for arguments in self._arguments([base, *args]):
                if (path := folding.call("os.path.join", arguments)) is not None:
                    yield Const(path)
        else:
            for constant in self.constants(base):
                for arguments in self._arguments(args):
                    if (folded := folding.method(constant, name, arguments)) is not None:
                        yield Const(folded)

    def _binary(self, node: ast.BinOp, op: ast.operator) -> Iterator[Value]:
        # A long sum leans to the left; it is not gone down by recursion.
        operands: list[ast.expr] = []
        first: ast.expr = node
        while isinstance(first, ast.BinOp) and type(first.op) is type(op):
            operands.append(first.right)
            first = first.left
        sums = self.constants(first)
        for operand in reversed(operands):
            pairs = islice(product(sums, self.constants(operand)), MAX_VALUES)
            sums = [s for pair in pairs if (s := folding.binary(op, *pair)) is not None]
        yield from (Const(value) for value in sums)

    def _joined(self, parts: list[ast.expr]) -> Iterator[Value]:
        texts: list[str] = [""]
        for part in parts:
            if isinstance(part, ast.FormattedValue):
                plain = part.format_spec is None
                pieces = [str(v) for v in self.constants(part.value)] if plain else []
            else:
                pieces = self.texts(part)
            pairs = islice(product(texts, pieces), MAX_VALUES)
            texts = [a + b for a, b in pairs if len(a) + len(b) <= folding.MAX_TEXT]
        yield from (Const(text) for text in texts)

    def _sequence(self, items: list[ast.expr]) -> Iterator[Value]:
        constants: list[Any] | None = []
        for item in items:
            yield from (Box(value) for value in self._handles(item))
            if constants is not None:
                known = self.constants(item)
                if len(known) == 1:
                    constants.append(known[0])
                else:
                    constants = None
        if constants is not None:
            yield Const(tuple(constants))

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
                        letters = [folding.call("builtins.chr", (i,)) for i in items]
                        yield Const(tuple(letters))

    def _items(self, node: ast.expr) -> Iterator[Value]:
        for value in unboxed(self.values(node)):
            if not isinstance(value, Ref) or value.name == DOWNLOAD:
                yield value

    def _handles(self, node: ast.expr | None) -> Iterator[Ref | Function | Getter]:
        for value in self.values(node):
            if isinstance(value, Ref | Function | Getter):
                yield value

    def _arguments(self, args: list[ast.expr]) -> Iterator[tuple[Any, ...]]:
        """The ways in which these arguments are constant."""
        return islice(product(*(self.constants(arg) for arg in args)), MAX_VALUES)
