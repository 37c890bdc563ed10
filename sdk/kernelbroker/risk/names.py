"""What the names in Python code are bound to, as far as can be told without running it.

Flow is not followed: a name stands for everything it is bound to anywhere. So `f = os.system` makes each
`f` an `os.system`; scopes are not told apart.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from itertools import islice, product

from . import folding
from .expressions import Expressions
from .python_rules import EXPORTS
from .report import Report
from .values import (
    MAX_VALUES,
    Box,
    Const,
    Function,
    Place,
    Ref,
    Value,
    Values,
    canonical,
    member,
    unboxed,
)

_ROUNDS = 4


class Names(Expressions):
    """Binds all names of a tree, and tells the values of its expressions."""

    def __init__(self, places: list[Place], report: Report) -> None:
        super().__init__(report)
        self._changed = False
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

    def is_recursive(self, function: ast.AST | None) -> bool:
        """Whether a function calls itself by its name."""
        return id(function) in self._recursive

    # Binding.

    def _bind_all(self, node: ast.AST) -> None:
        match node:
            case ast.Import(names=names):
                for alias in names:
                    module = alias.name if alias.asname else alias.name.partition(".")[0]
                    self._bind(alias.asname or module, {Ref(canonical(module))})
            case ast.ImportFrom(module=source, names=names, level=0):
                for alias in names:
                    for name in (
                        EXPORTS.get(source or "", ()) if alias.name == "*" else (alias.name,)
                    ):
                        self._bind(alias.asname or name, {member(Ref(source or ""), name)})
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, self.values(value), value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(target, self.values(value), value)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, self.values(value), value)
            case ast.AugAssign(target=target, op=op, value=value):
                pairs = product(self.constants(target), self.constants(value))
                sums = (folding.binary(op, *pair) for pair in islice(pairs, MAX_VALUES))
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
                        self._assign(each, frozenset(unboxed(values)))

    def _bind(self, name: str, values: Iterable[Value]) -> None:
        self._note(self._bound, name, values)

    def _note(self, table: dict[str, set[Value]], name: str, values: Iterable[Value]) -> None:
        known = table.setdefault(name, set())
        for value in values:
            if value not in known and len(known) < MAX_VALUES:
                known.add(value)
                self._changed = True


_BINDING = (
    ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For,
    ast.AsyncFor, ast.comprehension, ast.withitem, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda,
    ast.ClassDef, ast.Call,
)  # fmt: skip
