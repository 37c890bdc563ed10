"""What the names in Python code stand for, as far as can be told without running it.

Flow is not followed: a name stands for everything it is bound to anywhere. So `f = os.system` makes each
`f` an `os.system`; scopes are not told apart. What is not known has no values, and gives no findings.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import Any, NamedTuple, TypeAlias

from . import folding
from .python_rules import EXPORTS, KNOWN_BUILTINS, NETWORK, SAME_AS, USUAL
from .report import Report

DOWNLOAD = "<download>"
_GLOBALS = "<globals>"
_MAX_VALUES = 12
_MAX_DEPTH = 80
_ROUNDS = 4
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


class Names:
    """Binds all names of a tree, and tells the values of its expressions."""

    def __init__(self, places: list[Place], report: Report) -> None:
        self._report = report
        self._bound: dict[str, set[Value]] = {}
        self._attributes: dict[str, set[Value]] = {}
        self._functions: dict[int, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda] = {}
        self._returns: dict[int, list[ast.expr]] = {}
        self._own: set[str] = set()
        self._memo: dict[int, Values] = {}
        self._changed = False
        self._depth = 0
        self._recursive: set[int] = set()
        for node, function, _ in places:
            called = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
            if called is not None and called == getattr(function, "name", None):
                self._recursive.add(id(function))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                self._functions[id(node)] = node
                if isinstance(node, ast.Lambda):
                    self._returns[id(node)] = [node.body]
            elif isinstance(node, ast.Return | ast.Yield) and node.value is not None:
                self._returns.setdefault(id(function), []).append(node.value)
        for child in ast.iter_child_nodes(places[0].node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                self._own.add(child.name)
        deleted = {
            n.id for n, *_ in places if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Del)
        }
        self._own -= deleted
        binding = [p for p in places if isinstance(p.node, _BINDING)]
        for _ in range(_ROUNDS):
            self._changed = False
            for place in binding:
                self._bind_all(place.node)
            if not self._changed:
                break
            self._memo.clear()
        self._memo.clear()

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
            found = frozenset(islice(self._evaluate(node), _MAX_VALUES))
        finally:
            self._depth -= 1
        self._memo[id(node)] = found
        return found

    def is_recursive(self, function: ast.AST | None) -> bool:
        """Whether a function calls itself by its name."""
        return id(function) in self._recursive

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

    # Binding.

    def _bind_all(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    module = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._bind(alias.asname or module, {Ref(_canonical(module))})
            case ast.ImportFrom(module=source, names=names, level=0):
                for alias in names:
                    for name in (
                        EXPORTS.get(source or "", ()) if alias.name == "*" else (alias.name,)
                    ):
                        self._bind(alias.asname or name, {_member(Ref(source or ""), name)})
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, self.values(value), value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(target, self.values(value), value)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, self.values(value), value)
            case ast.AugAssign(target=target, op=op, value=value):
                pairs = product(self.constants(target), self.constants(value))
                sums = (folding.binary(op, *pair) for pair in islice(pairs, _MAX_VALUES))
                self._assign(target, frozenset(Const(s) for s in sums if s is not None))
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._assign(node.target, frozenset(self._items(node.iter)))
            case ast.withitem(context_expr=value, optional_vars=target) if target is not None:
                self._assign(target, self.values(value))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._bind(node.name, {Function(id(node))})
                self._defaults(node.args)
            case ast.Lambda():
                self._defaults(node.args)
            case ast.ClassDef(body=body):
                for statement in body:
                    if isinstance(statement, ast.Assign):
                        for target in statement.targets:
                            if isinstance(target, ast.Name):
                                self._note(
                                    self._attributes, target.id, self.values(statement.value)
                                )
            case ast.Call(func=func, args=args, keywords=keywords):
                for called in self.values(func):
                    if isinstance(called, Function):
                        self._pass(self._functions[called.key].args, args, keywords)

    def _defaults(self, args: ast.arguments) -> None:
        positional = [*args.posonlyargs, *args.args]
        for arg, default in zip(reversed(positional), reversed(args.defaults), strict=False):
            self._bind(arg.arg, self.values(default))
        for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            self._bind(arg.arg, self.values(value))

    def _pass(
        self, parameters: ast.arguments, args: list[ast.expr], keywords: list[ast.keyword]
    ) -> None:
        names = [arg.arg for arg in (*parameters.posonlyargs, *parameters.args)]
        for name, arg in zip(names, args, strict=False):
            self._bind(name, self.values(arg))
        for keyword in keywords:
            if keyword.arg:
                self._bind(keyword.arg, self.values(keyword.value))

    def _assign(self, target: ast.expr, values: Values, source: ast.expr | None = None) -> None:
        match target:
            case ast.Name(id=name):
                self._bind(name, values)
            case ast.Attribute(attr=name):
                self._note(self._attributes, name, values)
            case ast.Subscript(value=ast.Name(id=name)):
                self._bind(name, {Box(v) for v in values if isinstance(v, Ref | Function)})
            case ast.Starred(value=inner):
                self._assign(inner, values)
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                sources = source.elts if isinstance(source, ast.Tuple | ast.List) else []
                if len(sources) == len(targets):
                    for each, own in zip(targets, sources, strict=True):
                        self._assign(each, self.values(own), own)
                else:
                    for each in targets:
                        self._assign(each, frozenset(_unboxed(values)))

    def _bind(self, name: str, values: Iterable[Value]) -> None:
        self._note(self._bound, name, values)

    def _note(self, table: dict[str, set[Value]], name: str, values: Iterable[Value]) -> None:
        known = table.setdefault(name, set())
        for value in values:
            if value not in known and len(known) < _MAX_VALUES:
                known.add(value)
                self._changed = True

    # Evaluating.

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
                yield _member(value, name)
                found = True
            elif isinstance(value, Function) and name in ("__call__", "__func__"):
                yield value
        if not found:
            yield from self._attributes.get(name, ())

    def _subscript(self, base: ast.expr, index: ast.expr) -> Iterator[Value]:
        keys = self.constants(index)
        for value in self.values(base):
            match value:
                case Ref(name=name) if name == _GLOBALS or name.endswith(".__dict__"):
                    for key in keys:
                        if isinstance(key, str):
                            yield from self._entry(name, key)
                case Ref(name="builtins"):
                    yield from (Ref(f"builtins.{key}") for key in keys if isinstance(key, str))
                case Ref(name="sys.modules"):
                    yield from (Ref(_canonical(key)) for key in keys if isinstance(key, str))
                case Ref(name="os.environ") if "HOME" in keys:
                    yield Const("~")
                case Ref(name=name) if name == DOWNLOAD:
                    yield value
                case Box(content=content):
                    yield content
                case Const(value=constant):
                    indices = [_slice(index)] if isinstance(index, ast.Slice) else keys
                    folded = (folding.subscript(constant, key) for key in indices)
                    yield from (Const(f) for f in folded if f is not None)

    def _entry(self, namespace: str, key: str) -> Iterator[Value]:
        """A name in `globals()`, or in the `__dict__` of a module."""
        if namespace == _GLOBALS:
            yield from self._named(key)
        else:
            yield _member(Ref(namespace.removesuffix(".__dict__")), key)

    def _call(self, node: ast.Call) -> Iterator[Value]:
        func, args = node.func, node.args
        if isinstance(func, ast.Attribute):
            yield from self._method(func.value, func.attr, args)
        for value in self.values(func):
            match value:
                case Ref(name=name):
                    yield from self._known_call(name, args)
                case Getter(name=name):
                    yield from (_member(Ref(r), name) for arg in args for r in self.refs(arg))
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
                yield from (Ref(_canonical(m.partition(".")[0])) for m in self.texts(first))
            case "importlib.import_module" | "importlib.__import__" | "<loader>.load_module":
                yield from (Ref(_canonical(module)) for module in self.texts(first))
            case "builtins.vars":
                yield from (Ref(f"{module}.__dict__") for module in self.refs(first))
                if first is None:
                    yield Ref(_GLOBALS)
            case "builtins.globals" | "builtins.locals":
                yield Ref(_GLOBALS)
            case "operator.attrgetter" | "operator.methodcaller":
                yield from (Getter(key) for key in self.texts(first))
            case "builtins.next" | "builtins.iter" | "functools.partial" | "importlib.reload":
                yield from _unboxed(self.values(first))
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
            pairs = islice(product(sums, self.constants(operand)), _MAX_VALUES)
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
            pairs = islice(product(texts, pieces), _MAX_VALUES)
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
        for value in _unboxed(self.values(node)):
            if not isinstance(value, Ref) or value.name == DOWNLOAD:
                yield value

    def _handles(self, node: ast.expr | None) -> Iterator[Ref | Function | Getter]:
        for value in self.values(node):
            if isinstance(value, Ref | Function | Getter):
                yield value

    def _arguments(self, args: list[ast.expr]) -> Iterator[tuple[Any, ...]]:
        """The ways in which these arguments are constant."""
        return islice(product(*(self.constants(arg) for arg in args)), _MAX_VALUES)


_BINDING = (
    ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For,
    ast.AsyncFor, ast.comprehension, ast.withitem, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda,
    ast.ClassDef, ast.Call,
)  # fmt: skip


def _canonical(module: str) -> str:
    first, dot, rest = module.partition(".")
    return SAME_AS.get(module) or SAME_AS.get(first, first) + dot + rest


def _member(ref: Ref, name: str) -> Ref:
    base = ref.name
    if name == "__call__" or base == DOWNLOAD:
        return ref
    if name == "__self__" and base.startswith("builtins."):
        return Ref("builtins")
    if name in ("__builtins__", "f_builtins"):
        return Ref("builtins")
    if name in ("__globals__", "f_globals", "f_locals"):
        return Ref(_GLOBALS)
    if name in ("__loader__", "BuiltinImporter"):
        return Ref("<loader>")
    plain = name.removeprefix("_")
    if plain in _ELSEWHERE and base.rpartition(".")[2] != plain and not base.startswith("<"):
        return Ref(plain)
    full = f"{base}.{name}"
    return Ref(SAME_AS.get(full) or full)


def _unboxed(values: Iterable[Value]) -> Iterator[Value]:
    for value in values:
        if isinstance(value, Box):
            yield value.content
        elif isinstance(value, Const) and isinstance(value.value, tuple | str):
            yield from (Const(item) for item in value.value[:_MAX_VALUES])
        else:
            yield value


def _slice(node: ast.Slice) -> slice | None:
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
