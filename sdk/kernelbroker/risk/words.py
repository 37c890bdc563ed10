"""The words of a shell command as the shell would make them: quotes, variables, braces and substitutions.

What cannot be known before is `UNKNOWN` in a word; what a substitution downloads is `DOWNLOADED`. What a
file holds, and is fed to a command just so, is `FILE`.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from .report import Report
from .shell_rules import DOWNLOADERS
from .trees import text_of

if TYPE_CHECKING:
    from tree_sitter import Node

UNKNOWN, DOWNLOADED, FILE = "\0", "\1", "\2"
_MAX_TEXT = 100_000
_MAX_WORDS = 256
_MAX_DEPTH = 40
_MAX_EACH = 12
"""Values of a loop that its body is judged with."""
_BRACES = re.compile(r"\{([^{},\s]*(?:,[^{},\s]*)+)\}")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_STATIC = {
    "HOME": "~",
    "IFS": " ",
    "SHELL": "/bin/bash",
    "PWD": "/data",
    "USER": "user",
    "PATH": "/usr/bin:/bin",
}


class Words:
    """Evaluates words; `variables` is filled as assignments are met."""

    def __init__(self, report: Report) -> None:
        self.variables: dict[str, str] = dict(_STATIC)
        self._report = report
        self._depth = 0

    def assign(self, node: Node) -> None:
        """Take a `variable_assignment` into account."""
        name, value = node.child_by_field_name("name"), node.child_by_field_name("value")
        if name is None or name.type != "variable_name":
            return
        text = self.text(value) if value is not None else ""
        known = self.variables.get(text_of(name), "")
        appends = any(child.type == "+=" for child in node.children)
        self.variables[text_of(name)] = ((known if appends else "") + text)[:_MAX_TEXT]

    def values_of(self, loop: Node) -> tuple[str, list[str]]:
        """The variable of a `for_statement`, and what it is in turn; of many, the last is unknown."""
        name = loop.child_by_field_name("variable")
        nodes = [child for child in loop.children_by_field_name("value") if child.is_named]
        fields = [field for node in nodes[: _MAX_EACH + 1] for field in self.split(node)]
        values = list(dict.fromkeys(fields))
        if len(values) > _MAX_EACH:
            values[_MAX_EACH:] = [UNKNOWN]
        return (text_of(name) if name is not None else "", values)

    def split(self, node: Node) -> list[str]:
        """The fields that one word of the text gives."""
        if node.type in ("simple_expansion", "expansion", "command_substitution"):
            return self.text(node).split() or [""]
        text = self.text(node)
        bare = text_of(node)
        if node.type in ("word", "concatenation", "brace_expression") and _BRACES.search(bare):
            return _braces(text)
        if node.type == "concatenation" and any(
            child.type in ("simple_expansion", "expansion") for child in node.children
        ):
            return text.split() or [""]
        return [text]

    def text(self, node: Node) -> str:
        """A word as one string."""
        self._report.spend()
        if self._depth > _MAX_DEPTH:
            self._report.add("depth", "medium", "could not be judged: it is nested too deep")
            return UNKNOWN
        self._depth += 1
        try:
            return self._text(node)[:_MAX_TEXT]
        finally:
            self._depth -= 1

    def _text(self, node: Node) -> str:
        match node.type:
            case "word" | "number" | "extglob_pattern" | "regex" | "test_operator":
                return _ESCAPE.sub(r"\1", text_of(node))
            case "raw_string":
                return text_of(node)[1:-1]
            case "ansi_c_string":
                return _ansi_c(text_of(node)[2:-1])
            case "string" | "translated_string":
                return self._quoted(node)
            case "simple_expansion" | "expansion":
                return self._variable(node)
            case "concatenation" | "command_name" | "brace_expression":
                return "".join(self.text(child) for child in node.children) or text_of(node)
            case "command_substitution" | "process_substitution":
                return self.output(node)
            case "heredoc_body" | "arithmetic_expansion" | "array":
                return self._quoted(node) if node.type == "heredoc_body" else UNKNOWN
            case _:
                return text_of(node) if not node.named_children else UNKNOWN

    def _quoted(self, node: Node) -> str:
        """Text with expansions in it; what stands between the children is text as well."""
        raw = node.text or b""
        pieces, position = [], node.start_byte
        for child in node.children:
            pieces.append(
                raw[position - node.start_byte : child.start_byte - node.start_byte].decode(
                    "utf-8", "replace"
                )
            )
            if child.is_named and child.type not in ("string_content", "heredoc_content"):
                pieces.append(self.text(child))
            elif child.type != '"':
                pieces.append(re.sub(r'\\(["\\$`])', r"\1", text_of(child)))
            position = child.end_byte
        pieces.append(raw[position - node.start_byte :].decode("utf-8", "replace"))
        return "".join(pieces)

    def _variable(self, node: Node) -> str:
        inner = [child for child in node.named_children if child.type != "comment"]
        names = [child for child in inner if child.type == "variable_name"]
        if not names:
            return (
                ""
                if inner
                and inner[0].type == "special_variable_name"
                and text_of(node) in ("$@", "$*")
                else UNKNOWN
            )
        operators = [
            child.type
            for child in node.children
            if not child.is_named and child.type not in ("$", "${", "}")
        ]
        value = self.variables.get(text_of(names[0]))
        if not operators:
            return UNKNOWN if value is None else value
        if operators[0] in (":?", "?", ":-", "-", ":=", "=") and value is not None:
            return value
        if operators[0] in (":-", "-", ":=", "=") and value is None:
            return self.text(inner[1]) if len(inner) > 1 else ""
        if operators[0] == ":" and value is not None:
            numbers = re.findall(r"-?[0-9]{1,9}", text_of(node).partition(":")[2])
            start, length = [*map(int, numbers[:2]), None, None][:2]
            if start is not None:
                return value[start:][: length if length is not None else len(value)]
        return UNKNOWN

    def output(self, node: Node) -> str:
        """What a substitution or a pipeline would print, where it only turns text about."""
        commands = [child for child in node.named_children if child.type in ("command", "pipeline")]
        if node.type in ("command", "pipeline"):
            commands = [node]
        if len(commands) != 1:
            return UNKNOWN
        steps = commands[0].named_children if commands[0].type == "pipeline" else [commands[0]]
        return list(self.flow(steps))[-1].replace(FILE, UNKNOWN)

    def flow(self, steps: list[Node]) -> Iterator[str]:
        """The output of each command of a pipeline."""
        flowing = UNKNOWN
        for step in steps:
            given = [child for child in step.named_children if child.type == "herestring_redirect"]
            if step.type == "redirected_statement" and step.named_children:
                step = step.named_children[0]
                given += [c for c in step.named_children if c.type == "herestring_redirect"]
            if given and given[0].named_children:
                flowing = self.text(given[0].named_children[-1])
            flowing = _filter(self.argv(step), flowing) if step.type == "command" else UNKNOWN
            yield flowing

    def argv(self, command: Node) -> list[str]:
        """The words of a command, assignments and redirections left out."""
        found: list[str] = []
        for child in command.named_children:
            if (
                child.type == "variable_assignment"
                or "redirect" in child.type
                or child.type == "comment"
            ):
                continue
            for inner in child.children if child.type == "command_name" else [child]:
                found.extend(self.split(inner))
                if len(found) > _MAX_WORDS:
                    return found
        while found and not found[0]:
            found.pop(0)
        return found


def _filter(argv: list[str], text: str) -> str:
    """What a command makes of the text that it is fed."""
    if not argv:
        return UNKNOWN
    name, args = argv[0].rpartition("/")[2], argv[1:]
    flags = "".join(arg for arg in args if arg.startswith("-"))
    plain = [arg for arg in args if not arg.startswith("-")]
    if name in DOWNLOADERS:
        return DOWNLOADED
    if DOWNLOADED in text:
        return DOWNLOADED
    try:
        if name == "echo":
            joined = " ".join(plain)
            return _ansi_c(joined) if "e" in flags else joined
        if name == "printf" and plain:
            parts = iter(plain[1:])
            return re.sub(r"%[sb]", lambda _: next(parts, ""), _ansi_c(plain[0]))
        if name == "cat" and plain:
            return DOWNLOADED if any(DOWNLOADED in arg for arg in plain) else FILE
        if name == "cat" and text == FILE:
            return FILE
        if UNKNOWN in text or FILE in text:
            return UNKNOWN
        if name == "base64" and re.search("d|D", flags) and not plain:
            return base64.b64decode(text.strip()).decode("utf-8", "replace")
        if name == "xxd" and "r" in flags:
            return bytes.fromhex(text.strip()).decode("utf-8", "replace")
        if name == "rev":
            return "\n".join(line[::-1] for line in text.splitlines())
        if name == "tr" and len(plain) == 2:
            return _translated(text, *plain)
        if name == "cat" and not plain:
            return text
    except (ValueError, binascii.Error):
        pass
    return UNKNOWN


def _translated(text: str, source: str, target: str) -> str:
    def spread(letters: str) -> str:
        return re.sub(
            r"(\w)-(\w)",
            lambda m: "".join(map(chr, range(ord(m[1]), min(ord(m[2]), 0x250) + 1))),
            letters,
        )

    return text.translate(dict(zip(map(ord, spread(source)), spread(target), strict=False)))


def _ansi_c(text: str) -> str:
    try:
        return codecs.decode(text.encode("latin-1", "backslashreplace"), "unicode_escape")
    except (UnicodeError, ValueError):
        return text


def _braces(text: str) -> list[str]:
    """`{a,b}` spread out, within bounds."""
    waiting, found = [text], list[str]()
    while waiting and len(found) + len(waiting) < 64:
        word = waiting.pop(0)
        if brace := _BRACES.search(word):
            waiting.extend(
                word[: brace.start()] + part + word[brace.end() :] for part in brace[1].split(",")
            )
        else:
            found.append(word)
    return found + waiting
