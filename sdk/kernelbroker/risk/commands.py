"""Checks one shell command, given as its words. Commands that run other commands are followed."""

from __future__ import annotations

import itertools
import re

from ..protocol.findings import Language, Level
from . import paths
from . import shell_rules as tables
from .collector import Collector, Location, Rule

UNKNOWN = "\0"
"""In a word: text known only at run time."""
DOWNLOADED = "\1"
"""In a word: text from the network."""
_MAX_WRAPPERS = 8


def check(argv: list[str], at: Location, collector: Collector, stdin: str | None = None) -> None:
    """Add the findings of a command. `stdin` is the text on its standard input, if known."""
    for depth in range(_MAX_WRAPPERS):
        collector.step(1 + len(argv))
        if not argv:
            return
        name, args = argv[0].rpartition("/")[2], argv[1:]
        if DOWNLOADED in argv[0]:
            collector.add("code", "critical", "runs what was downloaded", *at)
        elif UNKNOWN in argv[0] and not argv[0].strip("./" + UNKNOWN) and (depth or args):
            level: Level = "high" if depth or args[0] in ("-c", "-e") else "medium"
            collector.add("dynamic", level, "runs a command known only at run time", *at)
        if name in tables.COMMANDS and not {"--version", "--help"} & set(args):
            collector.add_rule(tables.COMMANDS[name], name, at)
        if name not in tables.WRAPPERS:
            _check_arguments(name, args, at, collector)
            _check_code(name, args, at, collector, stdin)
            return
        argv = [] if name == "command" and "-v" in args else _unwrapped(args)
        if name == "xargs":
            argv += [UNKNOWN] if stdin is None or UNKNOWN in stdin else stdin.split()


def analyze_text(text: str, language: Language, name: str, at: Location, to: Collector) -> None:
    """Analyze text that a command runs as code."""
    if DOWNLOADED in text:
        to.add("code", "critical", f"{name} runs what was downloaded", *at)
    elif UNKNOWN in text and not text.strip(UNKNOWN + " \n\"'"):
        to.add("code", "high", f"{name} runs text known only at run time", *at)
    else:
        unknown = "${_}" if language == "shell" else "_"
        to.analyze_nested(text.replace(UNKNOWN, unknown), language, at)


def _unwrapped(args: list[str]) -> list[str]:
    """The command that a wrapper runs: from the first word that is known, or that may be a command."""
    known = [i for i, arg in enumerate(args) if arg.rpartition("/")[2] in tables.KNOWN]
    possible = [i for i, arg in enumerate(args) if not re.match(r"-|\w+=|\d+\w?$", arg)]
    return args[[*known, *possible, len(args)][0] :]


def _check_code(
    name: str, args: list[str], at: Location, collector: Collector, stdin: str | None
) -> None:
    """Check the code that a command runs."""
    if name in tables.INTERPRETERS:
        language = tables.INTERPRETERS[name]
        flag = re.compile(r"-e|-p|--eval|--print" if name == "node" else r"-[a-z]*c")
        rest = list(args)
        while rest and re.match(r"-.", rest[0]) and not flag.fullmatch(rest[0]):
            if rest[0] == "-m" and language == "python":
                check(rest[1:], at, collector)
                return
            rest = rest[2:] if rest[0] in ("-o", "-O", "-W", "-X", "-r", "--rcfile") else rest[1:]
        if rest and flag.fullmatch(rest[0]):
            analyze_text("".join(rest[1:2]), language, name, at, collector)
        elif rest and rest[0] not in ("-", "/dev/stdin") and DOWNLOADED not in rest[0]:
            collector.add("code", "low", f"{name} runs a file as code", *at)
        elif rest or stdin is not None:
            analyze_text(stdin or rest[0], language, name, at, collector)
    elif name == "eval":
        analyze_text(" ".join(args), "shell", name, at, collector)
    elif name == "find" and {"-exec", "-execdir"} & set(args):
        words = itertools.dropwhile(lambda arg: not arg.startswith("-exec"), args)
        check([_found(args) if word == "{}" else word for word in words][1:], at, collector)


def _check_arguments(name: str, args: list[str], at: Location, collector: Collector) -> None:
    """Check the arguments by pattern, and the paths among them."""
    plain = [arg for arg in args if not arg.startswith("-")]
    text = " ".join(args)
    found: list[Rule | None] = [
        rule for names, pattern, rule in tables.ARGUMENTS if name in names and pattern.search(text)
    ]
    if name in ("rm", "rmdir", "unlink"):
        recursive = any(re.match(r"-[a-zA-Z]*[rR]|--recursive", arg) for arg in args)
        if recursive and UNKNOWN in text:
            found.append(Rule("delete", "medium", "deletes a directory named at run time"))
        found += [paths.deleting(p, recursive=recursive) for p in plain if UNKNOWN not in p]
    elif name == "find" and "-delete" in args:
        found.append(paths.deleting(_found(args), recursive=True))
    for arg in args if name not in tables.NO_PATHS else ():
        if name not in tables.PATTERN_FIRST or [arg] != plain[:1]:
            found.append(paths.reading(re.sub(r"^(--?[\w-]+=|if=|[\w.-]+=@|@)", "", arg)))
    written = plain[tables.WRITERS[name] :] if name in tables.WRITERS else []
    if name == "sed" and re.search(r"(^| )(-i|--in-place)", text):
        written = plain[-1:]
    if name in tables.WRITING_OPTIONS:
        written += re.findall(rf"(?:^| )(?:{tables.WRITING_OPTIONS[name]})[ =]?([^ =-]\S*)", text)
    found += [paths.writing(path) for path in written if UNKNOWN not in path]
    for rule in found:
        if rule is not None:
            collector.add_rule(rule, name, at)


def _found(args: list[str]) -> str:
    """The path that `find` finds: its starting point and the name that it searches."""
    start = args[0] if args and not args[0].startswith("-") else "."
    names = [value for option, value in itertools.pairwise(args) if option in ("-name", "-iname")]
    return f"{start}/{names[0]}" if names else start
