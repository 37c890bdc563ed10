"""Resolves names and expressions of Python code, as far as the code alone determines them.

A value is a `Ref` (the full name of something imported or built in, such as `os.system`), a `Const`, or
None where it is known only at run time. The order of statements is ignored: a name has one value. Where
the code binds it to several, it stands for the first `Ref` among them, or else is unknown. Each expression
is evaluated once, so the work is linear in the code.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from . import python_constants as constants
from .collector import Collector
from .python_rules import BUILTINS, MODULES_WITH_RISKS, NAMES, SAME_AS, TEXTS, USUAL_NAMES


@dataclass(frozen=True, slots=True)
class Ref:
    """Something by its full name; `name()` is the result of a call and `name[]` an item."""

    name: str


@dataclass(frozen=True, slots=True)
class Const:
    """Text, bytes, a number, or a sequence as a tuple whose items may be None."""

    value: Any


Value: TypeAlias = Ref | Const | None
_Binding: TypeAlias = tuple[str, ast.expr | str | None]
_Bound: TypeAlias = Iterator[tuple[str, _Binding]]
"""How a name is bound (`ref`, `value`, `item`, `unknown`), and to what."""

_MAX_DEPTH = 60  # names bound to names
_MAX_NAME_CHARS = 200


class Names:
    """The names that code binds.

    Args:
        nodes: all nodes of the code, each with whether it is in a function or a class.
    """

    def __init__(self, nodes: Iterable[tuple[ast.AST, bool]], collector: Collector) -> None:
        self._collector = collector
        self._bindings: dict[str, list[_Binding]] = {}
        self._values: dict[int | str, Value] = {}
        """By the id of an expression or by name."""
        self._depth = 0
        for node, is_inner in nodes:
            for target, binding in _bindings_of(node):
                bindings = self._bindings.setdefault(target, [])
                if is_inner and not bindings and (builtin := BUILTINS.get(target)) in NAMES:
                    bindings.append(("ref", builtin))  # elsewhere it is still the builtin
                bindings.append(binding)

    def ref(self, node: ast.AST | None) -> str:
        """The full name of an expression, or an empty text."""
        value = self.value(node)
        return value.name if isinstance(value, Ref) else ""

    def const(self, node: ast.AST | None) -> Any:
        """The constant value of an expression, or None."""
        value = self.value(node)
        return value.value if isinstance(value, Const) else None

    def value(self, node: ast.AST | None) -> Value:
        """The value of an expression, if known."""
        if node is None or self._depth >= _MAX_DEPTH:
            return None
        if id(node) not in self._values:
            self._depth += 1
            value = self._values[id(node)] = self._evaluate(node)
            self._depth -= 1
            self._collector.step(2 if not isinstance(value, Const) else 2 + len(str(value)) // 50)
        return self._values[id(node)]

    def _evaluate(self, node: ast.AST) -> Value:
        match node:
            case ast.Constant(value=str() | bytes() | int() as constant):
                return Const(constant)
            case ast.Name():
                return self._name(node.id)
            case ast.Attribute():
                return _attribute(self.value(node.value), node.attr)
            case ast.Subscript():
                return self._subscript(self.value(node.value), self.const(node.slice))
            case ast.Call():
                return self._call(node)
            case ast.BinOp():
                left, right = self.const(node.left), self.const(node.right)
                return _known(constants.operate(node.op, left, right))
            case ast.Tuple() | ast.List():
                return Const(tuple(self._items(node.elts)))
            case ast.JoinedStr():
                return _known(constants.join(*map(self.const, node.values)))
            case ast.FormattedValue(format_spec=None) | ast.NamedExpr() | ast.Await():
                return self.value(node.value)
            case ast.BoolOp():
                return _merge(map(self.value, node.values))
        return None

    def _name(self, name: str) -> Value:
        if name not in self._values:
            self._values[name] = None  # for a name that is bound to itself
            full_name = BUILTINS.get(name) or USUAL_NAMES.get(name)
            free = None if full_name is None else Ref(full_name)
            bound = [self._bound(*binding) for binding in self._bindings.get(name, ())]
            self._values[name] = _merge(bound) if bound else free
        return self._values[name]

    def _bound(self, kind: str, to: ast.expr | str | None) -> Value:
        if isinstance(to, str):
            return Ref(_canonical(to))
        value = self.value(to)
        if kind == "item" and isinstance(value, Const):
            return _merge(map(_known, value.value)) if isinstance(value.value, tuple) else None
        return value

    def _items(self, nodes: list[ast.expr]) -> Iterator[Any]:
        for node in nodes:
            if isinstance(node, ast.Starred):
                items = self.const(node.value)
                yield from items if isinstance(items, tuple) else (None,)
            else:
                yield self.const(node)

    def _subscript(self, owner: Value, key: Any) -> Value:
        if not isinstance(owner, Ref):
            return _known(constants.fold(operator.getitem, owner and owner.value, key))
        if not isinstance(key, str):
            return Ref(f"{owner.name}[]") if len(owner.name) < _MAX_NAME_CHARS else None
        return Ref(_canonical(key)) if owner.name == "sys.modules" else _attribute(owner, key)

    def _call(self, node: ast.Call) -> Value:
        name, args = self.ref(node.func), [self.const(arg) for arg in node.args]
        owner, _, method = name.rpartition(".")
        if not name and isinstance(node.func, ast.Attribute):
            text = self.const(node.func.value)
            return _known(constants.call_method(text, node.func.attr, *args))
        if name in ("builtins.__import__", "importlib.import_module") and args:
            module = str(args[0] or "")
            return Ref(_canonical(module.partition(".")[0] if "__" in name else module))
        if name == "builtins.getattr" and len(args) > 1:
            return _attribute(self.value(node.args[0]), str(args[1] or ""))
        if name in ("builtins.vars", "functools.partial") and args:
            return self.value(node.args[0])
        if method in ("get", "__getitem__", "__getattribute__") and args[:1] not in ([], [None]):
            return self._subscript(Ref(owner), args[0])
        if name in constants.FUNCTIONS:
            return _known(constants.fold(constants.FUNCTIONS[name], *args))
        return Ref(f"{name}()") if name and len(name) < _MAX_NAME_CHARS else None


def _bindings_of(node: ast.AST) -> _Bound:
    """The names that a node binds."""
    match node:
        case ast.Import():
            for alias in node.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or module, ("ref", module)
        case ast.ImportFrom():
            for alias in node.names:
                yield alias.asname or alias.name, ("ref", f"{node.module or ''}.{alias.name}")
                for name in NAMES if alias.name == "*" else ():
                    if name.rpartition(".")[0] == node.module:
                        yield name.rpartition(".")[2], ("ref", name)
        case ast.Assign():
            for target in node.targets:
                yield from _targets(target, "value", node.value)
        case ast.AnnAssign() | ast.NamedExpr():
            yield from _targets(node.target, "value", node.value)
        case ast.AugAssign():
            yield from _targets(node.target, "value", None)
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            yield from _targets(node.target, "item", node.iter)
        case ast.withitem():
            yield from _targets(node.optional_vars, "value", node.context_expr)
        case ast.arg(arg=str(bound)):
            yield bound, ("unknown", None)
        case _ if not isinstance(node, ast.alias) and isinstance(getattr(node, "name", None), str):
            yield getattr(node, "name", ""), ("unknown", None)


def _targets(target: ast.AST | None, kind: str, value: ast.expr | None) -> _Bound:
    if isinstance(target, ast.Name):
        yield target.id, (kind, value)
    elif isinstance(target, ast.Tuple | ast.List):
        items = value.elts if isinstance(value, ast.Tuple | ast.List) and kind == "value" else []
        for i, each in enumerate(target.elts):
            if len(items) == len(target.elts):
                yield from _targets(each, kind, items[i])
            elif isinstance(each, ast.Name):
                yield each.id, ("unknown", None)


def _known(constant: Any) -> Value:
    return None if constant is None else Const(constant)


def _merge(values: Iterable[Value]) -> Value:
    """The first `Ref` of several values, the value that all are, or None."""
    different = list(dict.fromkeys(values))
    refs = [value for value in different if isinstance(value, Ref)]
    return refs[0] if refs else different[0] if len(different) == 1 else None


def _attribute(owner: Value, name: str) -> Value:
    if not isinstance(owner, Ref) or len(owner.name) + len(name) > _MAX_NAME_CHARS:
        return None
    if name == "__dict__":
        return owner
    if name == "__self__" and owner.name.startswith("builtins."):
        return Ref("builtins")
    module = name.lstrip("_")
    if module in MODULES_WITH_RISKS and "()" not in owner.name and module != owner.name:
        return Ref(module)  # a module that another one has imported
    full_name = _canonical(f"{owner.name}.{name}")
    return Const(TEXTS[full_name]) if full_name in TEXTS else Ref(full_name)


def _canonical(name: str) -> str:
    """The usual full name of a module or function with several names."""
    head, dot, rest = name.partition(".")
    return SAME_AS.get(name) or f"{SAME_AS.get(head, head)}{dot}{rest}"
