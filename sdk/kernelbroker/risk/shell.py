"""Analyzes shell scripts: the commands of the syntax tree, their input, and redirections."""

from __future__ import annotations

import base64
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from . import commands, paths
from .collector import Collector
from .commands import DOWNLOADED, UNKNOWN
from .shell_rules import DOWNLOADERS
from .syntax_trees import location, parse, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

_FORK_BOMB = re.compile(r"([\w:.]{1,30})\s*\(\)\s*\{[^}]{0,200}?\1\s*(\|\s*\1|&(?!&))")
_MAX_TEXT = 10_000
_STATEMENTS = ("redirected_statement", "pipeline", "subshell", "list")
_EXPANSIONS = ("simple_expansion", "expansion", "command_substitution")


def analyze(code: str, collector: Collector) -> None:
    """Add the findings of a script. Raises LimitExceeded, ParserMissing."""
    _Analyzer(collector).run(parse(code, "shell", collector))
    if found := _FORK_BOMB.search(code):
        line = code.count("\n", 0, found.start()) + 1
        collector.add("exhaustion", "critical", "a function that starts itself over and over", line)


class _Analyzer:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._variables: dict[str, str] = {"HOME": paths.HOME}
        self._functions: set[str] = set()
        self._stdin: dict[int, str] = {}
        """By the id of a command's node: the text on its standard input, if known."""

    def run(self, root: Node) -> None:
        for node in walk(root, self._collector):
            match node.type:
                case "variable_assignment":
                    self._assign(node)
                case "for_statement":  # the variable stands for all values: `rm $x` is `rm a b c`
                    name = node.child_by_field_name("variable")
                    values = map(self._text, node.children_by_field_name("value"))
                    self._variables[text_of(name) if name else ""] = " ".join(values)[:_MAX_TEXT]
                case "function_definition":
                    self._functions.add(text_of(node.children[0]))
                case "pipeline":
                    steps = [_command(child) for child in node.named_children]
                    for step, following in pairwise(steps):
                        if (output := self._output(step)) is not None:
                            self._stdin[following.id] = output
                case "heredoc_redirect":
                    self._feed(node)
                case "file_redirect":
                    self._redirect(node)
                case "command" | "declaration_command":
                    self._check(node)
                case "ERROR":
                    self._collector.add("syntax", "low", "does not parse as shell", *location(node))

    def _check(self, node: Node) -> None:
        argv = self._argv(node)
        if argv and argv[0] not in self._functions:
            commands.check(argv, location(node), self._collector, self._stdin.get(node.id))

    def _assign(self, node: Node) -> None:
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        variable = text_of(name) if name else ""
        self._variables[variable] = self._text(value) if value else ""
        if variable.startswith("LD_"):
            reason = "makes programs load other code"
            self._collector.add("tamper", "high", reason, *location(node))

    def _feed(self, node: Node) -> None:
        """Give text in the script to the command that reads it; in `cat <<X | sh` that is `sh`."""
        inner = {each.type: each for each in node.named_children}
        reader = inner.get("pipeline") or inner.get("command") or node.parent
        text = inner.get("heredoc_body") or node.named_children[-1]
        if reader is not None:
            self._stdin[_command(reader).id] = self._text(text)

    def _output(self, node: Node) -> str | None:
        """The output of a command, or None for the content of a file."""
        argv, stdin = self._argv(node), self._stdin.get(node.id)
        name = argv[0].rpartition("/")[2] if argv else ""
        if name in DOWNLOADERS or DOWNLOADED in "".join([*argv, stdin or ""]):
            return DOWNLOADED
        if name in ("echo", "printf"):
            return " ".join(arg for arg in argv[1:] if not arg.startswith("-"))
        if name == "base64" and stdin is not None:
            try:
                return base64.b64decode(stdin).decode("utf-8", "replace")
            except ValueError:
                return UNKNOWN
        return stdin if name == "cat" else UNKNOWN

    def _redirect(self, node: Node) -> None:
        destination = node.child_by_field_name("destination")
        if destination is None or text_of(destination).isdigit():
            return
        path = self._text(destination)
        reads = text_of(node).startswith("<") and not path.startswith("/dev/")
        rule = paths.reading(path) if reads else paths.writing(path)
        if rule is not None and UNKNOWN not in path:
            self._collector.add(*rule, *location(node))

    def _argv(self, node: Node) -> list[str]:
        """The words of a command."""
        argv: list[str] = []
        for child in node.children if node.type in ("command", "declaration_command") else ():
            word = child.named_children[0] if child.type == "command_name" else child
            if child.type == "herestring_redirect":
                self._feed(child)
            elif argv or child.type not in ("variable_assignment", "file_redirect"):
                text = self._text(word)
                argv.extend(text.split() if word.type in _EXPANSIONS else [text])
        return argv

    def _text(self, node: Node) -> str:
        """A word as the shell expands it."""
        text = text_of(node)
        self._collector.step(1 + len(text) // 20)
        match node.type:
            case "raw_string":
                return text[1:-1]
            case "ansi_c_string":
                return re.sub(r"\\x([0-9a-f]{2})", lambda found: chr(int(found[1], 16)), text[2:-1])
            case "simple_expansion" | "expansion":
                name = next((n for n in node.named_children if n.type == "variable_name"), node)
                return self._variables.get(text_of(name), UNKNOWN)
            case "command_substitution" | "process_substitution":
                if any(re.search(rf"\b{name}\b", text) for name in DOWNLOADERS):
                    return DOWNLOADED
                return self._output(_command(node.named_children[0])) or UNKNOWN
            case "word":
                return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)
        for child in node.named_children:
            if len(text) > _MAX_TEXT:
                return UNKNOWN
            text = text.replace(text_of(child), self._text(child), 1)
        return text[1:-1] if node.type == "string" else text


def _command(node: Node) -> Node:
    """The first command of a statement."""
    while node.named_children and node.type in _STATEMENTS:
        node = node.named_children[0]
    return node
