"""One shell command, its words already made: what it would do.

Commands that run others (`sudo`, `xargs`, `sh -c`) are gone through to what they run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from itertools import pairwise
from typing import TypeAlias

from ..protocol.findings import Language, Level
from . import paths
from .command_arguments import CODE, RISKS, found_commands, option_values
from .report import Report
from .shell_rules import (
    COMMANDS,
    INTERPRETERS,
    PATTERN_FIRST,
    READERS,
    SHELLS,
    SKIPPED,
    WRAPPERS,
    WRITERS,
    WRITING_OPTIONS,
)
from .words import DOWNLOADED, FILE, UNKNOWN

Spot: TypeAlias = tuple[int, int]
"""Line and column, from 1."""
_MAX_NESTED = 8


class Commands:
    """Judges argument lists. `functions` are names that the script defines itself."""

    def __init__(self, report: Report, functions: set[str]) -> None:
        self._report = report
        self._functions = functions

    def judge(self, argv: list[str], spot: Spot, fed: str | None = None, level: int = 0) -> None:
        """Judge a command. `fed` is the text on its standard input, where it is known."""
        self._report.spend()
        if not argv or level > _MAX_NESTED:
            return
        name = argv[0].rpartition("/")[2]
        args = argv[1:]
        if DOWNLOADED in argv[0]:
            self._add(spot, "code", "critical", "runs what was downloaded")
            return
        if UNKNOWN in argv[0]:
            if argv[0].strip("./") in (UNKNOWN, f"{UNKNOWN}{UNKNOWN}"):
                self._add(
                    spot, "dynamic", "medium", "runs a command that is known at run time only"
                )
            return
        if argv[0] in self._functions:
            return
        if name in WRAPPERS:
            self._wrapper(name, args, spot, fed, level)
            return
        if name in SHELLS or name in INTERPRETERS:
            self._interpreter(name, args, spot, fed)
        elif name in CODE:
            for text in CODE[name](args):
                self._text(text, "shell", name, spot)
        if risks := RISKS.get(name):
            for found in risks(args):
                self._add(spot, *found)
        elif rule := COMMANDS.get(name):
            if not args or not all(arg in ("--version", "--help", "-V", "-v") for arg in args):
                self._add(spot, rule.rule, rule.level, f"{name} {rule.reason}")
        elif name.endswith((".sh", ".py")):
            self._add(spot, "code", "low", "runs a file as code")
        if name == "find":
            for command in found_commands(args):
                self.judge(command, spot, None, 1)
        self._paths(name, args, spot)

    def _wrapper(self, name: str, args: list[str], spot: Spot, fed: str | None, level: int) -> None:
        takes = WRAPPERS[name]
        rest = list(args)
        if name in ("sudo", "doas"):
            self._add(spot, "escape", "medium", f"{name} acts as another user")
        while rest and (rest[0].startswith("-") or (name == "env" and "=" in rest[0])):
            option = rest.pop(0)
            if option == "--":
                break
            if name == "env" and option.startswith(("-S", "--split-string")):
                text = option.partition("=")[2] or option[2:] or (rest.pop(0) if rest else "")
                rest[:0] = _split(text)
            elif name == "command" and option in ("-v", "-V"):
                return
            elif len(option) == 2 and option[1] in takes and rest and option != "-i":
                rest.pop(0)
        rest = rest[SKIPPED.get(name, 0) :]
        if not rest:
            if name == "env":
                self._add(spot, "environment", "medium", "env shows all environment variables")
            return
        if name == "xargs" and fed is not None and not {UNKNOWN, FILE} & set(fed):
            rest = [*rest, *fed.split()]
        elif name == "xargs":
            rest = [*rest, UNKNOWN]
        self.judge(rest, spot, fed, level + 1)

    def _interpreter(self, name: str, args: list[str], spot: Spot, fed: str | None) -> None:
        language: Language = "shell" if name in SHELLS else INTERPRETERS[name]
        flag = re.compile(r"-[a-z]*c" if name != "node" else r"-e|-p|--eval|-pe|--print")
        rest = list(args)
        while rest and rest[0].startswith("-") and not flag.fullmatch(rest[0]):
            if rest[0] == "-m" and language == "python" and len(rest) > 1:
                self.judge(rest[1:], spot, None, 1)
                return
            takes = rest.pop(0) in ("-o", "-O", "-W", "-X", "-r", "--require", "--rcfile")
            rest = rest[1:] if takes else rest
        if rest and flag.fullmatch(rest[0]):
            self._text(rest[1] if len(rest) > 1 else "", language, name, spot)
        elif rest and rest[0] not in ("-", "/dev/stdin"):
            if DOWNLOADED in rest[0]:
                self._add(spot, "code", "critical", f"{name} runs what was downloaded")
            else:
                self._add(spot, "code", "low", f"{name} runs a file as code")
        elif fed == FILE:
            self._add(spot, "code", "low", f"{name} runs a file as code")
        elif fed is not None:
            self._text(fed.replace(FILE, UNKNOWN), language, name, spot)

    def _text(self, text: str, language: Language, name: str, spot: Spot) -> None:
        """Text that is run as code."""
        if DOWNLOADED in text:
            self._add(spot, "code", "critical", f"{name} runs what was downloaded")
            return
        if not text.strip(UNKNOWN + " \n"):
            if text.strip():
                self._add(spot, "code", "high", f"{name} runs text that is made at run time")
            return
        self._report.judge_nested(
            text.replace(UNKNOWN, "${_}" if language == "shell" else "_"), language, *spot
        )

    def _paths(self, name: str, args: list[str], spot: Spot) -> None:
        files = [arg for arg in args if not arg.startswith("-")]
        for path in _read(name, args) if name in READERS else ():
            if found := paths.reading(path):
                self._add(spot, *found)
        written = (
            files
            if WRITERS.get(name) == "all"
            else files[-1:]
            if WRITERS.get(name) and len(files) > 1
            else []
        )
        if name == "sed" and any(arg.startswith(("-i", "--in-place")) for arg in args):
            written = files[-1:]
        if options := WRITING_OPTIONS.get(name):
            written = [*written, *option_values(args, options)]
        for path in written:
            if UNKNOWN not in path and (found := paths.writing(path)):
                self._add(spot, *found)

    def _add(self, spot: Spot, rule: str, level: Level, reason: str) -> None:
        self._report.add(rule, level, reason, *spot)


def _read(name: str, args: list[str]) -> Iterator[str]:
    """The arguments of a command that reads, as far as they may be paths."""
    told = any(re.match(r"-\w*[ef]|--(regexp|file|expression)", arg) for arg in args)
    skips = name in PATTERN_FIRST and not told
    for before, arg in pairwise(["", *args]):
        if skips and not arg.startswith("-"):
            skips = False  # what is looked for
        elif name in PATTERN_FIRST and before in ("-e", "--regexp", "--expression"):
            pass
        elif re.match(r"--?[\w-]+=|if=|[\w.-]+=@", arg):
            yield arg.partition("=")[2].removeprefix("@")
        else:
            yield arg.removeprefix("@")


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()
