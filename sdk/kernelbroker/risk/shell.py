"""Judging shell: by its syntax tree, with words made as the shell would make them."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING

from . import paths, trees
from .commands import Commands
from .report import Report
from .shell_rules import CONNECTORS, SHELLS
from .words import FILE, UNKNOWN, Words

if TYPE_CHECKING:
    from tree_sitter import Node

_STATEMENTS = {"redirected_statement", "pipeline"}
_MAX_LOOPS = 2
"""Loops in loops whose bodies are judged with each value."""


def judge(code: str, report: Report) -> None:
    """Judge a script. Raises ParserMissing, TooMuch, RecursionError."""
    root = trees.parse(code, "shell")
    nodes = list(trees.walk(root, report))
    functions = {name for node in nodes if (name := _function_name(node))}
    _Judge(report, functions).look_at(nodes)
    if root.has_error:
        bad = next((node for node in nodes if node.type == "ERROR" or node.is_missing), root)
        report.add("syntax", "low", "does not parse as shell", *trees.place(bad))


class _Judge:
    def __init__(self, report: Report, functions: set[str]) -> None:
        self._report = report
        self._words = Words(report)
        self._commands = Commands(report, functions)
        self._fed: dict[int, str] = {}
        """What a command, by the id of its node, reads from its standard input."""
        self._loops = 0

    def look_at(self, nodes: list[Node]) -> None:
        for node in nodes:
            match node.type:
                case "variable_assignment":
                    self._words.assign(node)
                case "pipeline":
                    self._pipeline(node)
                case "redirected_statement":
                    self._redirected(node)
                case "file_redirect":
                    self._redirect(node)
                case "herestring_redirect" if node.parent is not None and node.named_children:
                    self._feed(node.parent, self._words.text(node.named_children[-1]))
                case "command":
                    self._command(node)
                case "declaration_command" | "unset_command":
                    self._declaration(node)
                case "function_definition":
                    self._function(node)
                case "for_statement":
                    self._for_each(node)
                case "while_statement":
                    self._loop(node)

    def _command(self, node: Node) -> None:
        for child in node.named_children:
            if child.type == "herestring_redirect" and child.named_children:
                self._feed(node, self._words.text(child.named_children[-1]))
            self._preload(child)
        self._commands.judge(self._words.argv(node), trees.place(node), self._fed.get(node.id))

    def _for_each(self, node: Node) -> None:
        """Judge the body with each value but the last, with which all goes on."""
        name, values = self._words.values_of(node)
        body = node.child_by_field_name("body")
        for value in values[:-1]:
            if body is None or self._loops >= _MAX_LOOPS:
                break
            self._words.variables[name] = value
            self._loops += 1
            self.look_at(list(trees.walk(body, self._report)))
            self._loops -= 1
        if values:
            self._words.variables[name] = values[-1]

    def _pipeline(self, node: Node) -> None:
        steps = [child for child in node.named_children if child.type != "comment"]
        for step, text in zip(steps[1:], self._words.flow(steps[:-1]), strict=True):
            self._feed(step, text)
        for step, following in pairwise(steps):
            talker, hearer = self._words.argv(_command_of(step, -1)), self._words.argv(following)
            shell = talker and _last(talker[0]) in SHELLS and "".join(talker[1:2])[:1] in ("", "-")
            if shell and hearer and _last(hearer[0]) in CONNECTORS:
                reason = "a connection is given what a shell says"
                self._report.add("network", "critical", reason, *trees.place(node))

    def _redirected(self, node: Node) -> None:
        body = node.child_by_field_name("body")
        if body is None:
            return
        for child in node.named_children:
            if child.type == "heredoc_redirect":
                for inner in child.named_children:
                    if inner.type == "heredoc_body":
                        self._feed(body, self._words.text(inner))
                    elif inner.type in ("pipeline", "command"):
                        self._feed_piped(child, inner)
            elif child.type == "herestring_redirect" and child.named_children:
                self._feed(body, self._words.text(child.named_children[-1]))
            elif child.type == "file_redirect" and trees.text_of(child).lstrip("0").startswith("<"):
                self._feed(body, FILE if "<(" not in trees.text_of(child) else self._from(child))

    def _feed_piped(self, heredoc: Node, step: Node) -> None:
        """`cat <<X | sh`: the tree has the pipe inside of the heredoc."""
        for inner in heredoc.named_children:
            if inner.type == "heredoc_body":
                first = step.named_children[0] if step.type == "pipeline" else step
                self._feed(first, self._words.text(inner))

    def _from(self, redirect: Node) -> str:
        return self._words.text(redirect.named_children[-1])

    def _feed(self, node: Node, text: str) -> None:
        """To the command in this statement, or to the first of a pipeline."""
        node = _command_of(node, 0)
        if node.type in ("subshell", "compound_statement"):
            for child in node.named_children:
                self._fed.setdefault(child.id, text)
        self._fed[node.id] = text

    def _redirect(self, node: Node) -> None:
        operator = next((child.type for child in node.children if not child.is_named), ">")
        destination = node.child_by_field_name("destination")
        if destination is None or (
            operator in (">&", "<&") and trees.text_of(destination).isdigit()
        ):
            return
        path = self._words.text(destination)
        found = paths.reading(path) if operator == "<" else paths.writing(path)
        if path.startswith(("/dev/tcp/", "/dev/udp/")):
            found = paths.writing(path)
        if found and (UNKNOWN not in path or found.level in ("high", "critical")):
            self._report.add(*found, *trees.place(node))

    def _declaration(self, node: Node) -> None:
        for child in node.named_children:
            self._preload(child)
        argv = [trees.text_of(child) for child in node.children]
        if argv[0] in ("export", "declare", "typeset") and argv[1:] in ([], ["-p"], ["-x"]):
            self._report.add("environment", "medium", "all variables are shown", *trees.place(node))

    def _preload(self, node: Node) -> None:
        """`LD_PRELOAD=...`, for one command or for all."""
        name = node.child_by_field_name("name") if node.type == "variable_assignment" else None
        if name is not None and trees.text_of(name).startswith("LD_"):
            reason = "a program is made to load other code"
            self._report.add("tamper", "high", reason, *trees.place(node))

    def _function(self, node: Node) -> None:
        name, body = _function_name(node), trees.text_of(node).partition("{")[2]
        if name:
            called = rf"(?<![\w.:/-]){re.escape(name)}(?![\w.:/-])"
            inner = (child for child in trees.walk(node, self._report) if child.type == "pipeline")
            bomb = any(len(re.findall(called, trees.text_of(pipe))) > 1 for pipe in inner)
            if bomb or re.search(rf"{called}\s*&(?!&)", body):
                self._report.add(
                    "exhaustion",
                    "critical",
                    "a function that starts itself over and over",
                    *trees.place(node),
                )

    def _loop(self, node: Node) -> None:
        condition, body = node.child_by_field_name("condition"), node.child_by_field_name("body")
        if (
            condition is None
            or body is None
            or trees.text_of(condition).strip("; \n") not in ("true", ":", "[ 1 ]")
        ):
            return
        if any(child.type == "&" for child in body.children):
            self._report.add(
                "exhaustion", "high", "starts programs without end", *trees.place(node)
            )


def _command_of(node: Node, at: int) -> Node:
    """A statement's own command; of a pipeline, the one at this place."""
    while node.type in _STATEMENTS and node.named_children:
        node = node.named_children[at if node.type == "pipeline" else 0]
    return node


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _function_name(node: Node) -> str:
    if node.type != "function_definition":
        return ""
    name = node.child_by_field_name("name")
    return trees.text_of(name) if name is not None else ""
