"""Analyzes Python: the names that it uses, the calls that it makes, and the paths that it gives them."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator

from ..protocol.findings import Level
from . import cells, commands, paths
from . import python_rules as tables
from .collector import Collector, Location, Rule
from .python_names import Names

_DOWNLOAD = re.compile(r"(requests|httpx|urllib|urllib3|http|aiohttp|socket)\.[\w.]*\(\)")
_WRITE_MODE = re.compile(r"[wax][bt+]*|r[bt]?\+[bt]?")
_INSERTED = re.compile(r"(?<!\$)\{[^{},\n]*\}")
"""What IPython puts into the text of a command."""
_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


def analyze(code: str, collector: Collector) -> None:
    """Add the findings of a cell. Raises LimitExceeded, RecursionError, MemoryError."""
    for tree in cells.parse(code, collector):
        _Analyzer(tree, collector).run()


class _Analyzer:
    def __init__(self, tree: ast.Module, collector: Collector) -> None:
        self._collector = collector
        self._parents: dict[int, ast.AST] = {}
        self._nodes: list[ast.AST] = []
        self._names = Names(self._walk(tree), collector)

    def run(self) -> None:
        for node in reversed(self._nodes):  # inner ones first, so that evaluation is not deep
            if isinstance(node, ast.Call):
                self._check_call(node)
            if isinstance(node, ast.Call | ast.Name | ast.Attribute | ast.Subscript):
                self._check_name(node)

    def _walk(self, tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
        """All nodes but annotations and methods, each with whether it is in a function or a class."""
        pending: list[tuple[ast.AST, bool]] = [(tree, False)]
        while pending:
            node, is_inner = pending.pop()
            self._collector.step()
            self._nodes.append(node)
            parent = self._parents.get(id(node))
            if not (isinstance(parent, ast.ClassDef) and isinstance(node, _SCOPES)):
                yield node, is_inner
            notes = [getattr(node, "annotation", None), getattr(node, "returns", None)]
            for child in reversed([*ast.iter_child_nodes(node)]):
                if child not in notes:
                    self._parents[id(child)] = node
                    pending.append((child, is_inner or isinstance(node, _SCOPES)))

    def _check_name(self, node: ast.expr) -> None:
        parent = self._parents.get(id(node))
        is_called = isinstance(parent, ast.Call) and parent.func is node
        name = self._names.ref(node)
        rule = _rule_of(name)
        if rule is None or (is_called and name in _CALL_CHECKS) or isinstance(parent, ast.Compare):
            pass
        elif isinstance(parent, ast.Attribute | ast.Subscript) and parent.value is node:
            if rule.rule != "environment" and _rule_of(self._names.ref(parent)) is None:
                self._add(node, rule, name)  # otherwise the longer name has the finding
        elif is_called or rule.rule != "bytecode":
            self._add(node, rule, name)
        if (
            isinstance(node, ast.Attribute)
            and (rule := tables.ATTRIBUTES.get(node.attr)) is not None
        ):
            is_own = node.attr == "__subclasses__" and isinstance(node.value, ast.Name)
            self._add(node, rule._replace(level="low") if is_own else rule, node.attr)

    def _check_call(self, node: ast.Call) -> None:
        name = self._names.ref(node.func)
        if (check := _CALL_CHECKS.get(name)) is not None:
            check(self, name, node)
        last, owner = name.rpartition(".")[2], ""
        if isinstance(node.func, ast.Attribute):
            last, owner = node.func.attr, self._text(node.func.value)
        given = [self._text(arg) for arg in (*node.args, *(kw.value for kw in node.keywords))]
        first = owner or "".join(given[:1])
        if last in tables.READ_FUNCTIONS:
            for path in (owner, *given):
                self._add(node, paths.reading(path), last)
        opens_to_write = last == "open" and any(map(_WRITE_MODE.fullmatch, given))
        written = [first] if opens_to_write or (owner and last in tables.WRITE_METHODS) else []
        written += given[:1] if last in tables.WRITE_TO_FIRST else []
        written += given[-1:] if last in tables.WRITE_TO_LAST else []
        for path in written:
            self._add(node, paths.writing(path), last)
        if last in tables.DELETE_FUNCTIONS and (owner or name.startswith(("os.", "shutil."))):
            unknown = Rule("delete", "medium", "deletes a directory named at run time")
            deletes = paths.deleting(first, recursive=last == "rmtree") if first else unknown
            self._add(node, deletes if first or last == "rmtree" else None, last)

    # Calls whose arguments decide.

    def check_command(self, name: str, node: ast.Call) -> None:
        command = self._names.const(_argument(node, 0, "cmd", "command", "args"))
        is_magic = name.startswith("get_ipython")
        if isinstance(command, str):
            text = _INSERTED.sub("${_}", command) if is_magic else command
            commands.analyze_text(text, "shell", name, _location(node), self._collector)
        elif isinstance(command, tuple) and command and command[0] is not None:
            argv = [commands.UNKNOWN if arg is None else str(arg) for arg in command]
            commands.check(argv, _location(node), self._collector)
        else:
            self._add(node, Rule("process", "high", "runs a command known only at run time"), name)
            return
        if not is_magic:
            self._add(node, Rule("process", "medium", "runs another program"), name)

    def check_code(self, name: str, node: ast.Call) -> None:
        code = _argument(node, 0, "source", "stmt", "raw_cell")
        if isinstance(code, ast.Call) and self._names.ref(code.func) == "builtins.compile":
            code = _argument(code, 0, "source")
        if _DOWNLOAD.match(self._names.ref(code)):
            self._add(node, Rule("code", "critical", "runs what was downloaded"), name)
        if self._names.const(code) is not None:
            self._collector.analyze_nested(self._text(code), "python", _location(node))
        elif code is not None and not name.startswith(("timeit", "cProfile")):
            self._add(node, Rule("code", "high", "runs text known only at run time"), name)

    def check_lookup(self, name: str, node: ast.Call) -> None:
        """`getattr` and imports by a name known only at run time."""
        is_getattr = name == "builtins.getattr"
        looked_up = _argument(node, 1 if is_getattr else 0, "name")
        if self._names.const(looked_up) is not None:
            self._add(node, tables.ATTRIBUTES.get(self._text(looked_up)), self._text(looked_up))
        elif not is_getattr or self._names.ref(_argument(node, 0)) in tables.MODULES_WITH_RISKS:
            level: Level = "medium" if name == "importlib.import_module" else "high"
            self._add(node, Rule("dynamic", level, "takes a name known only at run time"), name)

    def check_magic(self, _name: str, node: ast.Call) -> None:
        """What IPython's transformer makes of `%magic` and `%%magic`."""
        magic, text, *body = map(self._text, node.args)
        text = _INSERTED.sub("${_}", text)
        cells.check_magic(magic, text, body[0] if body else None, node.lineno, self._collector)

    def _text(self, node: ast.expr | None) -> str:
        """The text that an argument stands for; empty if it is not known."""
        value = self._names.const(node)
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return value if isinstance(value, str) else ""

    def _add(self, node: ast.AST, rule: Rule | None, name: str) -> None:
        if rule is not None:
            self._collector.add_rule(rule, name, _location(node))


_CALL_CHECKS: dict[str, Callable[[_Analyzer, str, ast.Call], None]] = {
    **dict.fromkeys(tables.COMMAND_FUNCTIONS.split(), _Analyzer.check_command),
    **dict.fromkeys(tables.CODE_FUNCTIONS.split(), _Analyzer.check_code),
    "builtins.getattr": _Analyzer.check_lookup,
    "builtins.__import__": _Analyzer.check_lookup,
    "importlib.import_module": _Analyzer.check_lookup,
    "get_ipython().run_line_magic": _Analyzer.check_magic,
    "get_ipython().run_cell_magic": _Analyzer.check_magic,
}


def _rule_of(name: str) -> Rule | None:
    """The rule of a full name: its own, or that of its module."""
    rule = tables.NAMES.get(name)
    module = name
    while rule is None and "." in module and "()" not in name:
        module = module.rpartition(".")[0]
        rule = tables.NAMES.get(f"{module}.*")
    return rule if rule is not None and rule.level != "safe" else None


def _argument(node: ast.Call, position: int, *names: str) -> ast.expr | None:
    """An argument by its position or one of its names."""
    if len(node.args) > position:
        return node.args[position]
    return next((keyword.value for keyword in node.keywords if keyword.arg in names), None)


def _location(node: ast.AST) -> Location:
    return getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
