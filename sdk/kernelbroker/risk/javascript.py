"""Judging JavaScript: by its syntax tree, with names followed to what they stand for."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from ..protocol.findings import Level
from . import paths, trees
from .javascript_expressions import LOADERS, arguments
from .javascript_names import Names
from .javascript_rules import DELETES, MOVES, NAMES, READS, WRITES
from .python_rules import Rule
from .report import Report, worse

if TYPE_CHECKING:
    from tree_sitter import Node

_DEEP = "constructor.constructor"


def judge(code: str, report: Report) -> None:
    """Judge a script. Raises ParserMissing, TooMuch, RecursionError."""
    root = trees.parse(code, "javascript")
    nodes = list(trees.walk(root, report))
    judge = _Judge(Names(nodes, report), report)
    for node in nodes:
        judge.look(node)
    if root.has_error:
        bad = next((node for node in nodes if node.type == "ERROR" or node.is_missing), root)
        report.add("syntax", "low", "does not parse as JavaScript", *trees.place(bad))


class _Judge:
    def __init__(self, names: Names, report: Report) -> None:
        self._names = names
        self._report = report
        self._seen: set[int] = set()

    def look(self, node: Node) -> None:
        if node.type in ("call_expression", "new_expression"):
            self._call(node)
        elif node.type in ("member_expression", "subscript_expression"):
            base = node.child_by_field_name("object")
            if base is not None and "process.env" in self._names.refs(base):
                self._seen.add(base.id)
            index = node.child_by_field_name("index")
            if (
                index is not None
                and self._names.is_unsure(index)
                and "globalThis" in self._names.refs(base)
            ):
                self._add(
                    node, "dynamic", "medium", "a global is taken that is known at run time only"
                )
        self._seen.update(child.id for child in (*_named_anew(node), *_compared(node)))
        if node.type in _USES and node.id not in self._seen:
            for name in self._names.refs(node):
                if name.endswith(_DEEP):
                    self._add(node, "code", "high", "constructor.constructor runs text as code")
                elif rule := _rule(name):
                    self._add(node, rule.rule, rule.level, f"{name} {rule.reason}")

    def _call(self, node: Node) -> None:
        function = node.child_by_field_name("function") or node.child_by_field_name("constructor")
        args = arguments(node)
        first = args[0] if args else None
        for name in self._names.refs(function):
            module, _, last = name.rpartition(".")
            if name in LOADERS or name == "<require>":
                if self._names.is_unsure(first) and first is not None:
                    self._add(
                        node,
                        "dynamic",
                        "medium",
                        f"{name.strip('<>')} loads what is known at run time only",
                    )
            elif name.startswith("child_process."):
                self._command(node, name, function, args)
            elif name in (
                "eval",
                "Function",
                "vm.runInThisContext",
                "vm.runInNewContext",
                "vm.Script",
            ):
                code = args[-1] if name == "Function" and args else first
                for text in self._names.texts(code):
                    self._report.judge_nested(text, "javascript", *trees.place(node))
                if function is not None and not self._names.is_unsure(code):
                    self._seen.add(function.id)
            elif module in ("fs", "fs.promises"):
                self._file(node, last, args)

    def _command(self, node: Node, name: str, function: Node | None, args: list[Node]) -> None:
        programs = self._names.texts(args[0]) if args else []
        if not programs or function is None or "fork" in name:
            return
        words = [""]
        if len(args) > 1 and args[1].type == "array":
            items = [self._names.texts(item) or ["${_}"] for item in args[1].named_children]
            words = [
                " ".join(item[0] if item[0] == "${_}" else shlex.quote(item[0]) for item in items)
            ]
        elif "File" in name or "spawn" in name:
            words = [""] if len(args) < 2 or args[1].type in ("object", "arrow_function") else []
        if not words:
            return
        level: Level = "medium"
        for program in programs:
            level = worse(
                level,
                self._report.judge_nested(f"{program} {words[0]}", "shell", *trees.place(node)),
            )
        if not self._names.is_unsure(args[0]):
            self._seen.add(function.id)
            self._add(node, "process", level, f"{name} runs another program")

    def _file(self, node: Node, last: str, args: list[Node]) -> None:
        for path in self._names.texts(args[0]) if args and last in READS else ():
            if found := paths.reading(path):
                self._add(node, *found)
        if last in DELETES and args:
            whole = last in ("rm", "rmSync", "rmdir", "rmdirSync") and any(
                "recursive" in trees.text_of(arg) for arg in args[1:]
            )
            for path in self._names.texts(args[0]):
                if found := paths.deleting(path, whole=whole):
                    self._add(node, *found)
            if whole and self._names.is_unsure(args[0]):
                self._add(
                    node, "delete", "medium", f"fs.{last} deletes a directory named at run time"
                )
        for path in self._names.texts(args[0]) if args and last in MOVES else ():
            if found := paths.moving(path):
                self._add(node, *found)
        if last in WRITES and len(args) > WRITES[last]:
            for path in self._names.texts(args[WRITES[last]]):
                if found := paths.writing(path):
                    self._add(node, *found)

    def _add(self, node: Node, rule: str, level: Level, reason: str) -> None:
        self._report.add(rule, level, reason, *trees.place(node))


_USES = {
    "identifier",
    "member_expression",
    "subscript_expression",
    "call_expression",
    "new_expression",
}


def _named_anew(node: Node) -> list[Node]:
    """The identifiers in a node that name something new, and use nothing."""
    if node.type in ("variable_declarator", "function_declaration", "class_declaration"):
        name = node.child_by_field_name("name")
        return [] if name is None else [name]
    whole = (
        "formal_parameters",
        "import_specifier",
        "import_clause",
        "namespace_import",
        "labeled_statement",
    )
    return node.named_children if node.type in whole else []


def _compared(node: Node) -> list[Node]:
    """What is only compared: `x instanceof Function`."""
    operator = node.child_by_field_name("operator") if node.type == "binary_expression" else None
    return node.named_children if operator is not None and operator.type in _COMPARES else []


_COMPARES = {"instanceof", "==", "===", "!=", "!=="}


def _rule(name: str) -> Rule | None:
    rule = NAMES.get(name)
    above = name
    while rule is None and "." in above:
        above = above.rpartition(".")[0]
        rule = NAMES.get(f"{above}.*")
    return None if rule is None or rule.level == "safe" else rule
