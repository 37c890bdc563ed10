"""Judging Python, as IPython takes it: by its syntax tree, with names followed to what they stand for.

Every use of a name that `python_rules` knows is a finding, called or not, since what is handed on may be
called anywhere; calls whose arguments tell more are looked into by `python_calls`.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable

from ..protocol.findings import Level
from . import paths, trees
from .cells import Part, parts
from .names import Names
from .parsing import parse
from .python_calls import LOOKED_INTO, Calls
from .python_rules import ANCESTRY, DUNDERS, NAMES, Rule
from .report import Report
from .values import DOWNLOAD, Place, walk

_MAGICS = {
    "run": Rule("code", "low", "%run runs a file as code"),
    "load": Rule("code", "low", "%load brings code from elsewhere"),
    "env": Rule("environment", "low", "%env shows or sets environment variables"),
    "unknown": Rule("code", "medium", "the cell is handed to another interpreter"),
    "perl": Rule("code", "medium", "the cell is handed to another interpreter"),
    "ruby": Rule("code", "medium", "the cell is handed to another interpreter"),
}
_HANDED_OUT = {
    "stdout",
    "stderr",
    "stdin",
    "path",
    "argv",
    "displayhook",
    "excepthook",
    "ps1",
    "ps2",
}
"""What of `sys` is there to be replaced."""
_KEEPERS = {"sys.modules", "builtins", "builtins.__dict__"}
"""Where everything dangerous can be had by its name."""
_ASKS_TOO_MUCH = re.compile(r"__(globals|subclasses|builtins|code|mro|bases)__")


def judge(code: str, report: Report) -> None:
    """Judge a cell. Raises TooMuch, RecursionError, MemoryError."""
    try:
        tree = parse(code)
    except SyntaxError:
        pass
    else:
        _judge_tree(tree, report)
        return
    for part in parts(code):
        report.spend()
        with_lines = "\n" * (part.line - 1) + part.code
        if part.language == "python":
            _judge_text(with_lines, report)
        elif part.language is None:
            _judge_magic(part, report)
        elif part.language == "shell" and not trees.is_available():
            report.add("process", "high", "a shell command is run", part.line)
        else:
            report.judge_part(part.code, part.language, part.line)


def _judge_magic(part: Part, report: Report) -> None:
    if part.name == "writefile":
        if found := paths.writing(part.code):
            report.add(*found, part.line)
    elif rule := _MAGICS.get(part.name):
        report.add(*rule, part.line)


def _judge_text(code: str, report: Report) -> None:
    try:
        tree = parse(code)
    except SyntaxError as exc:
        if "too many" in str(exc.msg):
            raise RecursionError from exc
        report.add("syntax", "low", "does not parse as Python", exc.lineno or 1, exc.offset or 1)
        # The kernel's Python may be newer than this one: what can be read is judged.
        tree = ast.Module(list(itertools.chain.from_iterable(_readable(code))), [])
    _judge_tree(tree, report)


def _readable(code: str) -> Iterable[list[ast.stmt]]:
    """The statements of each block that parses, where a block begins at the left margin."""
    lines = code.splitlines(keepends=True)
    starts = [
        i for i, line in enumerate(lines) if line[:1] not in (" ", "\t", "\n", "#", ")", "]", "}")
    ]
    for start, end in itertools.pairwise([*starts[:2000], len(lines)]):
        try:
            block = parse("".join(lines[start:end])).body
        except (SyntaxError, RecursionError, MemoryError):
            continue
        for statement in block:
            yield [ast.increment_lineno(statement, start)]


def _judge_tree(tree: ast.Module, report: Report) -> None:
    places = list(walk(tree, report))
    names = Names(places, report)
    calls = Calls(names, report)
    judge = _Judge(names, calls, report)
    for place in places:
        judge.look(place)


class _Judge:
    def __init__(self, names: Names, calls: Calls, report: Report) -> None:
        self._names = names
        self._calls = calls
        self._report = report
        self._seen: set[int] = set()
        """Nodes that what stands around them has dealt with."""

    def look(self, place: Place) -> None:
        node = place.node
        match node:
            case ast.Call():
                self._call(node, place)
            case ast.Attribute(value=base, attr=name):
                self._dunder(node, base, name)
                if name in ("get", "setdefault", "pop", "update"):
                    self._spare_environ(base)
            case ast.Subscript(value=base):
                self._subscript(node, base)
            case ast.Compare(left=left, comparators=operands):
                self._spare(left, *operands)
            case ast.AnnAssign(annotation=hint) | ast.arg(annotation=hint) if hint is not None:
                self._spare(*ast.walk(hint))
            case ast.FunctionDef(returns=hint) | ast.AsyncFunctionDef(returns=hint) if hint:
                self._spare(*ast.walk(hint))
            case ast.ImportFrom(module=module, names=[ast.alias(name="*")]):
                if f"{module}.*" in NAMES:
                    self._add(node, str(module), NAMES[f"{module}.*"])
        if isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.Call):
            self._use(node)

    def _use(self, node: ast.Name | ast.Attribute | ast.Subscript | ast.Call) -> None:
        """A name that there is a rule for."""
        if id(node) in self._seen:
            return
        if isinstance(getattr(node, "ctx", None), ast.Store | ast.Del):
            if isinstance(node, ast.Attribute):
                self._replaced(node)
            return
        for name in self._names.refs(node):
            if rule := _rule(name):
                self._add(node, name, rule)

    def _call(self, node: ast.Call, place: Place) -> None:
        names = self._names.refs(node.func)
        known = [name for name in names if name in LOOKED_INTO]
        for name in known:
            self._calls.look(name, node, place)
        if known and all(name in LOOKED_INTO or not _rule(name) for name in names):
            self._seen.add(id(node.func))
        self._calls.look_at_paths(node, names)
        if {"builtins.isinstance", "builtins.issubclass"} & set(names) and len(node.args) > 1:
            self._spare(*getattr(node.args[1], "elts", [node.args[1]]))
        for name in names:
            if (
                name in ("builtins.getattr", "builtins.vars", "inspect.getattr_static")
                and node.args
            ):
                for key in self._names.texts(node.args[1]) if len(node.args) > 1 else ():
                    self._dunder(node, node.args[0], key)
        formats = isinstance(node.func, ast.Attribute) and node.func.attr in (
            "format",
            "format_map",
        )
        texts = self._names.texts(node.func.value) if formats else []  # type: ignore[attr-defined]
        if any(_ASKS_TOO_MUCH.search(text) for text in texts):
            self._add(node, "the format string", DUNDERS["__globals__"])

    def _subscript(self, node: ast.Subscript, base: ast.expr) -> None:
        stores = isinstance(node.ctx, ast.Store)
        for name in self._names.refs(base):
            keys = self._names.texts(node.slice)
            if name in ("os.environ", "os.environb"):
                self._seen.add(id(base))
                if stores and any(key.startswith("LD_") or key == "PYTHONSTARTUP" for key in keys):
                    self._add(node, name, Rule("tamper", "high", "is made to load other code"))
            elif name == "sys.modules" and stores:
                self._add(node, name, Rule("tamper", "medium", "is given another module"))
            elif not isinstance(node.ctx, ast.Load) or _is_own_module(node.slice):
                pass
            elif name in _KEEPERS and self._names.is_unsure(node.slice):
                rule = Rule("dynamic", "high", "gives what is known at run time only")
                self._add(node, name, rule)

    def _dunder(self, node: ast.expr, base: ast.expr, name: str) -> None:
        if name == "__subclasses__":
            climbed = "builtins.object" in self._names.refs(base) or any(
                isinstance(part, ast.Attribute) and part.attr in ANCESTRY for part in _chain(base)
            )
            known = climbed or not isinstance(base, ast.Name | ast.Attribute)
            level: Level = "high" if known else "low"
            self._add(node, name, Rule("dunder", level, "gives every class below another"))
        elif rule := DUNDERS.get(name):
            self._add(node, name, rule)

    def _spare(self, *nodes: ast.AST) -> None:
        """Names that are only compared, or that say of what type something is."""
        self._seen.update(id(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute))

    def _spare_environ(self, node: ast.expr) -> None:
        if "os.environ" in self._names.refs(node):
            self._seen.add(id(node))

    def _replaced(self, node: ast.Attribute) -> None:
        for module in set(self._names.refs(node.value)) & {"builtins", "os", "sys"}:
            if not (module == "sys" and node.attr in _HANDED_OUT):
                rule = Rule("tamper", "medium", "is replaced by something else")
                self._add(node, f"{module}.{node.attr}", rule)

    def _add(self, node: ast.AST, name: str, rule: Rule) -> None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        reason = f"{name} {rule.reason}"
        self._report.add(rule.rule, rule.level, reason, line, column)


def _is_own_module(node: ast.expr) -> bool:
    """`sys.modules[__name__]`, and `[cls.__module__]`."""
    return getattr(node, "id", "") == "__name__" or getattr(node, "attr", "") == "__module__"


def _rule(name: str) -> Rule | None:
    """The rule for a full name, or for the nearest `*` above it; None where it is safe."""
    if name == DOWNLOAD:
        return None
    rule = NAMES.get(name)
    above = name
    while rule is None and "." in above:
        above = above.rpartition(".")[0]
        rule = NAMES.get(f"{above}.*")
    return None if rule is None or rule.level == "safe" else rule


def _chain(node: ast.expr) -> Iterable[ast.expr]:
    """`a`, `a.b`, `a.b()`, `a.b()[0]` from the outside in; bounded as trees are."""
    while True:
        yield node
        match node:
            case ast.Attribute(value=inner) | ast.Subscript(value=inner) | ast.Call(func=inner):
                node = inner
            case _:
                return
