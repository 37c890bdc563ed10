"""What the names in Python code are bound to, as far as can be told without running it.

Flow is not followed: a name stands for everything it is bound to anywhere in its scope. So `f = os.system`
makes each `f` an `os.system`. First all is gathered that can be known, then where a name may stand for
something else as well: what a call gives, what a function that others call is given.
"""

from __future__ import annotations

import ast
from functools import partial

from .lists import added, as_list, item_of, list_of
from .python_rules import EXPORTS
from .report import Report
from .results import Results
from .scopes import FUNCTIONS, Key, Scopes, parameters
from .values import (
    GLOBALS,
    UNKNOWN,
    Box,
    Function,
    Place,
    Ref,
    Value,
    Values,
    canonical,
    member,
)

_ROUNDS = 6
"""Functions that hand on to each other what they are given: one more is followed with each."""
_FEW = 4


class Names(Results):
    """Binds all names of a tree, and tells the values of its expressions."""

    def __init__(self, places: list[Place], report: Report) -> None:
        super().__init__(Scopes(places), report)
        self._recursive: set[int] = set()
        self._methods: dict[str, list[int]] = {}
        """By their names, and those that make an object by the name of its class."""
        self._called: set[int] = set()
        self._handed_on: set[int] = set()
        self._summed: set[int] = set()
        for node, function, _ in places:
            called = getattr(node.func, "id", None) if isinstance(node, ast.Call) else None
            if called is not None and called == getattr(function, "name", None):
                self._recursive.add(id(function))
            if isinstance(node, FUNCTIONS):
                self._functions[id(node)] = node
                if isinstance(node, ast.Lambda):
                    self._returns[id(node)] = [node.body]
            elif isinstance(node, ast.ClassDef):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        name = node.name if method.name == "__init__" else method.name
                        self._methods.setdefault(name, []).append(id(method))
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
        self._gather(binding)
        self._settled = True
        for key in self._functions.keys() - (self._called - self._handed_on):
            self._give_anything(self._functions[key])
        self._gather(binding)

    def _gather(self, binding: list[Place]) -> None:
        for _ in range(_ROUNDS):
            self._changed = False
            self._memo.clear()
            for place in binding:
                self._bind_all(place)
            if not self._changed:
                return  # what was found in this round stays true
        self._memo.clear()

    def is_recursive(self, function: ast.AST | None) -> bool:
        """Whether a function calls itself by its name."""
        return id(function) in self._recursive

    # Binding.

    def _bind_all(self, place: Place) -> None:
        node, function, _ = place
        match node:
            case ast.Import(names=names):
                for alias in names:
                    module = alias.name if alias.asname else alias.name.partition(".")[0]
                    ref = Ref(canonical(module))
                    self._bind(self._scopes.key(alias.asname or module, function), (ref,))
            case ast.ImportFrom(module=source, names=names, level=0):
                for alias in names:
                    for name in (
                        EXPORTS.get(source or "", ()) if alias.name == "*" else (alias.name,)
                    ):
                        key = self._scopes.key(alias.asname or name, function)
                        self._bind(key, (member(Ref(source or ""), name),))
            case ast.Assign(targets=[ast.Name() as target], value=value) if _is_of_itself(node):
                self._assign_anew(target, value, place)
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    self._assign(target, self.values(value), value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self._assign(target, self.values(value), value)
            case ast.NamedExpr(target=target, value=value):
                self._assign(target, self.values(value), value)
            case ast.AugAssign(target=target, op=op, value=value):
                self._grow(target, op, self.terms(value), place)
            case ast.For() | ast.AsyncFor() | ast.comprehension():
                self._assign(node.target, tuple(self._items(node.iter)))
            case ast.withitem(context_expr=value, optional_vars=target) if target is not None:
                self._assign(target, self.values(value))
            case ast.MatchAs(name=str(name)) | ast.MatchStar(name=str(name)):
                self._bind(self._scopes.key(name, function), (UNKNOWN,))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._bind(self._scopes.key(node.name, function), (Function(id(node)),))
                self._defaults(node)
            case ast.Lambda():
                self._defaults(node)
            case ast.ClassDef(body=body):
                for statement in body:
                    if isinstance(statement, ast.Assign):
                        for target in statement.targets:
                            if isinstance(target, ast.Name):
                                self._note(
                                    self._attributes, target.id, self.values(statement.value)
                                )
            case ast.Call():
                self._called_with(node)
                self._grow_list(node, place)

    def _assign_anew(self, target: ast.expr, value: ast.expr, place: Place) -> None:
        """`name = f"{name} ..."`: made once of what the name was before, or it would grow for ever."""
        if id(place.node) not in self._summed:
            values = self.values(value)
            if any(value is not UNKNOWN for value in values):
                self._summed.add(id(place.node))
            self._assign(target, values, value)
        grows = isinstance(value, ast.BinOp | ast.JoinedStr)
        if (place.in_loop and grows) or self.is_unsure(value):
            self._assign(target, (UNKNOWN,))

    def _grow_list(self, node: ast.Call, place: Place) -> None:
        """`name.append(...)` and the like."""
        match node.func:
            case ast.Attribute(value=ast.Name() as name, attr="append"):
                items = (item for arg in node.args for item in self.choices(arg))
                self._grow(
                    name,
                    ast.Add(),
                    [as_list([*item], settled=self._settled) for item in items],
                    place,
                )
            case ast.Attribute(value=ast.Name() as name, attr="extend"):
                more = [term for arg in node.args for term in self.terms(arg)]
                self._grow(name, ast.Add(), more, place)
            case ast.Attribute(value=ast.Name() as name, attr="insert"):
                self._assign(name, (UNKNOWN,))

    def _grow(self, target: ast.expr, op: ast.operator, more: list[Value], place: Place) -> None:
        """`target += ...`: what there was before stays known, with what comes of it."""
        add = partial(added, op, settled=self._settled)
        known = [term for term in self.terms(target) if term is not UNKNOWN]
        if id(place.node) not in self._summed and known:
            # Each sum could be added to by the next: of many, only the newest is followed.
            olds = known if len(known) <= _FEW else known[-1:]
            sums = tuple(add(old, value) for old in olds for value in more)
            if len(known) > 2 * _FEW and list_of(known[0]) is not None:
                sums = (add(known[0], UNKNOWN),)
            if any(value is not UNKNOWN for value in sums):
                self._summed.add(id(place.node))
            self._assign(target, sums)
        if place.in_loop or UNKNOWN in more:
            sums = tuple(add(old, UNKNOWN) for old in dict.fromkeys([*known[:1], *known[-1:]]))
            self._assign(target, sums or (UNKNOWN,))

    def _called_with(self, node: ast.Call) -> None:
        """Hand the arguments of a call to the function of the code's own that it calls."""
        func = node.func
        for arg in (*node.args, *(keyword.value for keyword in node.keywords)):
            for value in self.values(arg):
                if isinstance(value, Function):
                    self._handed_on.add(value.key)
        for called in self.values(func):
            if isinstance(called, Function):
                self._pass(called.key, node.args, node.keywords)
        name = getattr(func, "attr", None) or getattr(func, "id", None)
        if name in self._methods and not self.refs(func):
            for method in self._methods[name]:
                self._pass(method, node.args, node.keywords, skipped=1)

    def _pass(
        self, called: int, args: list[ast.expr], keywords: list[ast.keyword], skipped: int = 0
    ) -> None:
        self._called.add(called)
        function = self._functions[called]
        names = [arg.arg for arg in (*function.args.posonlyargs, *function.args.args)][skipped:]
        for name, arg in zip(names, args, strict=False):
            if isinstance(arg, ast.Starred):
                self._give_anything(function)
                break
            self._bind((called, name), self.values(arg))
        for keyword in keywords:
            if keyword.arg:
                self._bind((called, keyword.arg), self.values(keyword.value))
            else:
                self._give_anything(function)

    def _give_anything(self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        """It is called by others, or with a list of arguments: who knows with what."""
        for arg in parameters(function):
            self._bind((id(function), arg.arg), (UNKNOWN,))

    def _defaults(self, function: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) -> None:
        args = function.args
        positional = [*args.posonlyargs, *args.args]
        for arg, default in zip(reversed(positional), reversed(args.defaults), strict=False):
            self._bind((id(function), arg.arg), self.values(default))
        for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True):
            self._bind((id(function), arg.arg), self.values(value))

    def _assign(self, target: ast.expr, values: Values, source: ast.expr | None = None) -> None:
        match target:
            case ast.Name():
                self._bind(self._scopes.of(target), values)
            case ast.Attribute(attr=name):
                self._note(self._attributes, name, values)
            case ast.Subscript(value=ast.Call() as base, slice=index) if GLOBALS in self.refs(base):
                for name in self.texts(index):
                    self._bind((0, name), values)
            case ast.Subscript(value=ast.Name() as name):
                handles = [value for value in values if isinstance(value, Ref | Function)]
                boxes = tuple(Box(value) for value in handles)
                self._bind(self._scopes.of(name), boxes or (UNKNOWN,))
            case ast.Starred(value=inner):
                self._assign(inner, (UNKNOWN,))
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                sources = source.elts if isinstance(source, ast.Tuple | ast.List) else []
                for i, each in enumerate(targets):
                    if len(sources) == len(targets):
                        self._assign(each, self.values(sources[i]), sources[i])
                    else:
                        items = (item_of(value, i, len(targets)) for value in values)
                        self._assign(each, tuple(item for found in items for item in found))

    def _bind(self, key: Key, values: Values) -> None:
        self._note(self._bound, key, values)


def _is_of_itself(node: ast.Assign) -> bool:
    """Whether a name is assigned something that is made of what it stands for."""
    name = getattr(node.targets[0], "id", "")
    return any(isinstance(part, ast.Name) and part.id == name for part in ast.walk(node.value))


_BINDING = (
    ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign, ast.NamedExpr, ast.For,
    ast.AsyncFor, ast.comprehension, ast.withitem, ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda,
    ast.ClassDef, ast.Call, ast.MatchAs, ast.MatchStar,
)  # fmt: skip
