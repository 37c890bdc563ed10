"""One shell command, its words already made: what it would do.

Commands that run others (`sudo`, `xargs`, `sh -c`) are gone through to what they run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..protocol.findings import Level
from . import paths
from .report import Report
from .shell_rules import (
    COMMANDS,
    INTERPRETERS,
    OTHER_INTERPRETERS,
    READERS,
    SHELLS,
    SKIPPED,
    WRAPPERS,
    WRITERS,
)
from .words import DOWNLOADED, UNKNOWN

if TYPE_CHECKING:
    from .shell import Spot

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
        elif special := _SPECIAL.get(name):
            special(self, args, spot)
        elif rule := COMMANDS.get(name):
            if not args or not all(arg in ("--version", "--help", "-V", "-v") for arg in args):
                self._add(spot, rule.rule, rule.level, f"{name} {rule.reason}")
        elif name.endswith((".sh", ".py")):
            self._add(spot, "code", "low", "runs a file as code")
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
            elif len(option) == 2 and option[1] in takes and rest and option not in ("-i",):
                rest.pop(0)
        rest = rest[SKIPPED.get(name, 0) :]
        if not rest:
            if name == "env":
                self._add(spot, "environment", "medium", "env shows all environment variables")
            return
        if name == "xargs" and fed is not None and UNKNOWN not in fed:
            rest = [*rest, *fed.split()]
        elif name == "xargs":
            rest = [*rest, UNKNOWN]
        self.judge(rest, spot, fed, level + 1)

    def _interpreter(self, name: str, args: list[str], spot: Spot, fed: str | None) -> None:
        language: Any = "shell" if name in SHELLS else INTERPRETERS[name]
        flag = re.compile(r"-[a-z]*c" if name not in ("node",) else r"-e|-p|--eval|-pe|--print")
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
        elif fed is not None:
            self._text(fed, language, name, spot)

    def _text(self, text: str, language: Any, name: str, spot: Spot) -> None:
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
        if name in READERS:
            for arg in args:
                path = (
                    arg.partition("=")[2]
                    if re.match(r"--?[\w-]+=|if=", arg)
                    else arg.removeprefix("@")
                )
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
        for path in written:
            if UNKNOWN not in path and (found := paths.writing(path)):
                self._add(spot, *found)

    # Commands whose arguments decide.

    def _rm(self, args: list[str], spot: Spot) -> None:
        flags = [arg for arg in args if arg.startswith("-")]
        short = "".join(flag for flag in flags if not flag.startswith("--"))
        whole = "r" in short.lower() or any(
            "--recursive".startswith(f) and len(f) > 4 for f in flags
        )
        if "--no-preserve-root" in flags:
            self._add(spot, "delete", "critical", "rm is told to delete the root as well")
        for path in (arg for arg in args if not arg.startswith("-")):
            if UNKNOWN in path:
                if whole:
                    self._add(spot, "delete", "medium", "rm deletes a directory named at run time")
            elif found := paths.deleting(path, whole=whole):
                self._add(spot, *found)

    def _dd(self, args: list[str], spot: Spot) -> None:
        for arg in args:
            if arg.startswith("of=") and (found := paths.writing(arg[3:])):
                self._add(spot, *found)

    def _chmod(self, args: list[str], spot: Spot) -> None:
        modes = [arg for arg in args if not arg.startswith("-")][:1]
        if any(re.fullmatch(r"[0-7]?[4-7][0-7]{3}|.*[ug]*[+=][rwx]*s.*", mode) for mode in modes):
            self._add(spot, "escape", "high", "chmod lets a program run with its owner's rights")
        for path in [arg for arg in args if not arg.startswith("-")][1:]:
            if UNKNOWN not in path and (found := paths.writing(path)):
                self._add(spot, *found)

    def _kill(self, args: list[str], spot: Spot) -> None:
        if "-l" in args:
            return
        pids = args[1:] if args[:1] and args[0].startswith("-") and len(args) > 1 else args
        pids = pids[1:] if args[:1] == ["-s"] else pids
        every = any(pid in ("-1", "1") for pid in pids)
        level: Level = "critical" if every else "low"
        reason = "kill ends every process" if every else "kill ends another process"
        self._add(spot, "signal", level, reason)

    def _find(self, args: list[str], spot: Spot) -> None:
        starts = []
        for arg in args:
            if arg.startswith(("-", "(", "!")):
                break
            starts.append(arg)
        if "-delete" in args:
            for path in starts or ["."]:
                if found := paths.deleting(path, whole=True):
                    self._add(spot, *found)
        for i, arg in enumerate(args):
            if arg in ("-exec", "-execdir", "-ok", "-okdir"):
                rest = args[i + 1 :]
                end = next((j for j, a in enumerate(rest) if a in (";", "+", "\\;")), len(rest))
                for start in starts or ["."]:
                    self.judge([start if a == "{}" else a for a in rest[:end]], spot, None, 1)

    def _eval(self, args: list[str], spot: Spot) -> None:
        self._text(" ".join(args), "shell", "eval", spot)

    def _source(self, args: list[str], spot: Spot) -> None:
        if args and DOWNLOADED in args[0]:
            self._add(spot, "code", "critical", "source runs what was downloaded")
        elif args:
            self._add(spot, "code", "low", "source runs a file as code")

    def _nc(self, args: list[str], spot: Spot) -> None:
        runs = any(
            re.fullmatch(r"-\w*[ec]|--(sh-)?exec.*|exec:.*", arg, re.IGNORECASE) for arg in args
        )
        level: Level = "critical" if runs else "medium"
        reason = "gives a program to a connection" if runs else "uses the network"
        self._add(spot, "network", level, f"nc {reason}")

    def _git(self, args: list[str], spot: Spot) -> None:
        if {"clone", "fetch", "pull", "push"} & set(args[:3]):
            self._add(spot, "network", "low", "git uses the network")

    def _set(self, args: list[str], spot: Spot) -> None:
        if not args:
            self._add(spot, "environment", "medium", "all variables are shown")

    def _alias(self, args: list[str], spot: Spot) -> None:
        for arg in args:
            self._text(arg.partition("=")[2], "shell", "alias", spot)

    def _trap(self, args: list[str], spot: Spot) -> None:
        if args:
            self._text(args[0], "shell", "trap", spot)

    def _shred(self, args: list[str], spot: Spot) -> None:
        for path in (arg for arg in args if not arg.startswith("-")):
            if found := paths.writing(path):
                self._add(spot, *found)

    def _other(self, args: list[str], spot: Spot) -> None:
        """perl, awk and others: their code is not parsed, only looked at for the plainest signs."""
        text = " ".join(args)
        if re.search(
            r"\b(system|exec|popen|shell_exec|passthru)\b|`|\bsocket\b|/inet/", text, re.IGNORECASE
        ):
            self._add(spot, "process", "high", "code of another language runs another program")
        elif re.search(r"-\w*e\b|-r\b", text) and UNKNOWN in text:
            self._add(spot, "code", "medium", "runs text that is made at run time")

    def _tar(self, args: list[str], spot: Spot) -> None:
        if any(
            arg.startswith(("--to-command", "--checkpoint-action", "--use-compress-program", "-I"))
            for arg in args
        ):
            self._add(spot, "process", "high", "tar runs another program")

    def _pip(self, args: list[str], spot: Spot) -> None:
        if {"install", "download", "add", "i", "ci"} & set(args[:3]):
            level: Level = "medium" if any("://" in arg for arg in args) else "low"
            self._add(spot, "install", level, "installs software")

    def _wget(self, args: list[str], spot: Spot) -> None:
        self._add(spot, "network", "medium", "uses the network")
        for i, arg in enumerate(args[:-1]):
            if arg in ("-o", "-O", "--output", "--output-document") and (
                found := paths.writing(args[i + 1])
            ):
                self._add(spot, *found)

    def _add(self, spot: Spot, rule: str, level: Level, reason: str) -> None:
        self._report.add(rule, level, reason, *spot)


def _split(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


_SPECIAL: dict[str, Callable[[Commands, list[str], Spot], None]] = {
    "rm": Commands._rm,
    "rmdir": Commands._rm,
    "unlink": Commands._rm,
    "dd": Commands._dd,
    "chmod": Commands._chmod,
    "chown": Commands._chmod,
    "kill": Commands._kill,
    "find": Commands._find,
    "eval": Commands._eval,
    "source": Commands._source,
    ".": Commands._source,
    "git": Commands._git,
    "set": Commands._set,
    "export": Commands._set,
    "alias": Commands._alias,
    "trap": Commands._trap,
    "shred": Commands._shred,
    "tar": Commands._tar,
    "curl": Commands._wget,
    "wget": Commands._wget,
    **dict.fromkeys(("nc", "ncat", "netcat", "socat"), Commands._nc),
    **dict.fromkeys(
        ("pip", "pip3", "npm", "uv", "conda", "mamba", "apt", "apt-get"), Commands._pip
    ),
    **dict.fromkeys(OTHER_INTERPRETERS, Commands._other),
}
