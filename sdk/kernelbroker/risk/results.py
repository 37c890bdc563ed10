"""What calls give in Python code: the code's own functions, known ones of constants, methods of text."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice, product
from typing import Any

from . import folding
from .expressions import Expressions, OwnFunction
from .lists import as_list, unboxed
from .python_rules import INSTANCES, LISTING, NETWORK
from .report import Report
from .scopes import Scopes
from .values import (
    DOWNLOAD,
    GLOBALS,
    MAX_VALUES,
    UNKNOWN,
    Const,
    Function,
    Getter,
    Ref,
    Value,
    canonical,
    member,
)


class Results(Expressions):
    """Evaluates calls as well."""

    def __init__(self, scopes: Scopes, report: Report) -> None:
        super().__init__(scopes, report)
        self._functions: dict[int, OwnFunction] = {}
        self._returns: dict[int, list[ast.expr]] = {}

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
                        letters = [folding.call("builtins.chr", (i,)) for i in items]
                        yield as_list(letters, settled=self._settled)
            case "pathlib.Path" | "pathlib.PurePath" | "pathlib.PosixPath" if args:
                yield from self._folded("os.path.join", args)
            case "pathlib.Path.home":
                yield Const("~")
            case "os.getenv" if "HOME" in self.texts(first):
                yield Const("~")
            case _ if name in LISTING:
                for path in self.texts(first) or ["."]:
                    yield Const(_listing(name, path))
                yield UNKNOWN  # what the names are is not known, but whose they are
            case "IPython.get_ipython":
                yield Ref("IPython.shell")
            case _ if name.startswith(DOWNLOAD) or name in NETWORK:
                yield Ref(DOWNLOAD)
            case _ if name in INSTANCES:
                yield Ref(INSTANCES[name])
            case _:
                yield from self._folded(name, args)

    def _method(self, base: ast.expr, name: str, args: list[ast.expr]) -> Iterator[Value]:
        """Calls of methods that pass on what they were called on."""
        if name in ("get", "__getitem__", "pop") and args:
            yield from self._subscript(base, args[0])
        elif name == "__getattribute__" and args:
            for key in self.texts(args[-1]):
                yield from self.member(base if len(args) == 1 else args[0], key)
        elif name in ("joinpath", "expanduser", "resolve", "absolute") and self.texts(base):
            yield from self._folded("os.path.join", [base, *args])
        elif name in ("glob", "rglob", "iterdir") and self.texts(base):
            for path in self.texts(base):
                for pattern in self.texts(args[0]) if args else ["*"]:
                    yield Const((f"{path}/{pattern}",))
            yield UNKNOWN
        else:
            for constant in self.constants(base):
                for arguments in self._arguments(args):
                    if (folded := folding.method(constant, name, arguments)) is not None:
                        yield Const(folded)
                        if self.is_unsure(base, *args):
                            yield UNKNOWN

    def _folded(self, name: str, args: list[ast.expr]) -> Iterator[Value]:
        """What a known function gives for these arguments, as far as they are constant."""
        for arguments in self._arguments(args):
            folded = folding.call(name, arguments)
            yield UNKNOWN if folded is None else Const(folded)
        if self.is_unsure(*args):
            yield UNKNOWN

    def _arguments(self, args: list[ast.expr]) -> Iterator[tuple[Any, ...]]:
        """The ways in which these arguments are constant."""
        if any(isinstance(arg, ast.Starred) for arg in args):
            return iter(())
        return islice(product(*(self.constants(arg) for arg in args)), MAX_VALUES)


def _listing(function: str, path: str) -> tuple[Any, ...]:
    """What a function that lists directories gives, with `*` for the names."""
    match function:
        case "os.listdir":
            return ("*",)
        case "os.scandir":
            return (f"{path}/*",)
        case "glob.glob" | "glob.iglob":
            return (path,)
    return ((path, ("*",), ("*",)),)
