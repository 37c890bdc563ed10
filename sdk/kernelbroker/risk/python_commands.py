"""Calls of Python that start programs: which ones, as far as that can be told.

A command line that a shell takes apart has to be known as a whole. Of a list of arguments, the program is
enough: what else is in it is `${_}`, which is for the rules of that program to judge.
"""

from __future__ import annotations

import ast
import re
import shlex
from typing import Any, NamedTuple

from ..protocol.findings import Level
from . import trees
from .python_looks import Looks, argument
from .python_rules import NAMES
from .report import worse
from .shell_rules import WRAPPERS
from .values import UNKNOWN, Const, Partial, Place, Value


class _Words(NamedTuple):
    """Where a function takes a program and its arguments from.

    Attributes:
        program: the place of the program.
        rest: the place of the list of arguments, or of the first of them. Either begins with the name that
            the program is told it has.
        is_list: whether they are in a list.
    """

    program: int
    rest: int
    is_list: bool


_TAKEN: dict[str, _Words] = {
    "os.execl": _Words(0, 1, False),
    "os.execv": _Words(0, 1, True),
    "os.posix_spawn": _Words(0, 1, True),
    "os.spawnl": _Words(1, 2, False),
    "os.spawnv": _Words(1, 2, True),
}
"""By the beginning of the full name; what takes the environment as well has one more argument."""


class Commands(Looks):
    """Looks into calls for the commands that they run."""

    def command(self, name: str, node: ast.Call, _place: Place) -> None:
        """A program is run: what it is decides, where that can be told."""
        rule = NAMES[name]
        lines = [_line(value) for value in self._command_lines(name, node)]
        known = [line for line in lines if line is not None] if trees.is_available() else []
        level: Level = "medium" if known and len(known) == len(lines) else rule.level
        for line in known:
            level = worse(level, self._nested(line, "shell", node))
        self._add(node, rule.rule, level, f"{name} {rule.reason}")

    def _command_lines(self, name: str, node: ast.Call) -> list[Value]:
        """What is run: texts, lists of words, or what is not known."""
        if "fork_exec" in name:
            return []
        if name.endswith("create_subprocess_exec"):
            return self._names.listed(node.args)
        for beginning, (program, rest, is_list) in _TAKEN.items():
            if not name.startswith(beginning) or len(node.args) <= rest:
                continue
            if not is_list:
                return self._names.listed([node.args[program], *node.args[rest + 1 :]])
            programs = self._names.terms(node.args[program])
            return [_with_program(p, a) for p in programs for a in self._terms(node.args[rest])]
        return self._terms(argument(node, 0, "args", "cmd", "command", "argv"))

    def _terms(self, node: ast.expr | None) -> list[Value]:
        return [] if node is None else self._names.terms(node)


def _with_program(program: Value, args: Value) -> Value:
    items = args.items if isinstance(args, Partial) else getattr(args, "value", None)
    if not isinstance(program, Const) or not isinstance(items, tuple):
        return UNKNOWN
    return Partial((program.value, *items[1:]))


def _line(command: Value) -> str | None:
    """A command as the shell would be given it; None where it is not known which program it runs."""
    match command:
        case Const(value=str(text)):
            return text
        case Const(value=bytes(text)):
            return text.decode("utf-8", "replace")
        case Const(value=tuple(items)) | Partial(items=tuple(items)):
            words = [_word(item) for item in items]
            return " ".join(words) if _program(words) not in ("", _ANY) else None
    return None


def _program(words: list[str]) -> str:
    """The program, also where `sudo` or `timeout 5` stands before it."""
    if not words or words[0].rpartition("/")[2] not in WRAPPERS:
        return words[0] if words else ""
    after = (word for word in words[1:] if word == _ANY or not _NO_PROGRAM.match(word))
    return next(after, words[0])


_NO_PROGRAM = re.compile(r"-|[0-9.]+[smhd]?$|\w+=")
"""Options of what stands before a program, numbers, and variables."""


_ANY = "${_}"


def _word(item: Any) -> str:
    if isinstance(item, bytes):
        item = item.decode("utf-8", "replace")
    return shlex.quote(item) if isinstance(item, str) else _ANY
