"""What the arguments of a shell command say: what is risky in them, and which are code themselves.

Nothing is judged further here, and no argument is known but as a string; `commands.py` does the rest.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

from . import paths
from .paths import Judged
from .shell_rules import OTHER_INTERPRETERS
from .words import DOWNLOADED, UNKNOWN


def found_commands(args: list[str]) -> Iterator[list[str]]:
    """The commands that `find` runs, with the directories it begins at for what it finds."""
    for i, arg in enumerate(args):
        if arg in ("-exec", "-execdir", "-ok", "-okdir"):
            rest = args[i + 1 :]
            end = next((j for j, a in enumerate(rest) if a in (";", "+", "\\;")), len(rest))
            for start in _starts(args):
                yield [start if a == "{}" else a for a in rest[:end]]


def _alias(args: list[str]) -> list[str]:
    return [arg.partition("=")[2] for arg in args]


def _eval(args: list[str]) -> list[str]:
    return [" ".join(args)]


def _trap(args: list[str]) -> list[str]:
    return args[:1]


CODE: dict[str, Callable[[list[str]], list[str]]] = {"alias": _alias, "eval": _eval, "trap": _trap}
"""Which texts these commands run as shell."""


def _rm(args: list[str]) -> Iterator[Judged]:
    flags = [arg for arg in args if arg.startswith("-")]
    short = "".join(flag for flag in flags if not flag.startswith("--"))
    whole = "r" in short.lower() or any("--recursive".startswith(f) and len(f) > 4 for f in flags)
    if "--no-preserve-root" in flags:
        yield Judged("delete", "critical", "rm is told to delete the root as well")
    for path in _plain(args):
        if UNKNOWN in path:
            if whole:
                yield Judged("delete", "medium", "rm deletes a directory named at run time")
        elif found := paths.deleting(path, whole=whole):
            yield found


def _dd(args: list[str]) -> Iterator[Judged]:
    return _written(arg[3:] for arg in args if arg.startswith("of="))


def _chmod(args: list[str]) -> Iterator[Judged]:
    mode, *files = _plain(args) or [""]
    if re.fullmatch(r"[0-7]?[4-7][0-7]{3}|.*[ug]*[+=][rwx]*s.*", mode):
        yield Judged("escape", "high", "chmod lets a program run with its owner's rights")
    yield from _written(path for path in files if UNKNOWN not in path)


def _kill(args: list[str]) -> Iterator[Judged]:
    if "-l" in args:
        return
    pids = args[1:] if args[:1] and args[0].startswith("-") and len(args) > 1 else args
    pids = pids[1:] if args[:1] == ["-s"] else pids
    if any(pid in ("-1", "1") for pid in pids):
        yield Judged("signal", "critical", "kill ends every process")
    else:
        yield Judged("signal", "low", "kill ends another process")


def _find(args: list[str]) -> Iterator[Judged]:
    if "-delete" in args:
        for path in _starts(args):
            if found := paths.deleting(path, whole=True):
                yield found


def _source(args: list[str]) -> Iterator[Judged]:
    if args and DOWNLOADED in args[0]:
        yield Judged("code", "critical", "source runs what was downloaded")
    elif args:
        yield Judged("code", "low", "source runs a file as code")


def _nc(args: list[str]) -> Iterator[Judged]:
    program = re.compile(r"-\w*[ec]|--(sh-)?exec.*|exec:.*", re.IGNORECASE)
    if any(program.fullmatch(arg) for arg in args):
        yield Judged("network", "critical", "nc gives a program to a connection")
    else:
        yield Judged("network", "medium", "nc uses the network")


def _git(args: list[str]) -> Iterator[Judged]:
    if {"clone", "fetch", "pull", "push"} & set(args[:3]):
        yield Judged("network", "low", "git uses the network")


def _set(args: list[str]) -> Iterator[Judged]:
    if not args:
        yield Judged("environment", "medium", "all variables are shown")


def _shred(args: list[str]) -> Iterator[Judged]:
    return _written(_plain(args))


def _other_language(args: list[str]) -> Iterator[Judged]:
    """perl, awk and others: their code is not parsed, only looked at for the plainest signs."""
    text = " ".join(args)
    if re.search(
        r"\b(system|exec|popen|shell_exec|passthru)\b|`|\bsocket\b|/inet/", text, re.IGNORECASE
    ):
        yield Judged("process", "high", "code of another language runs another program")
    elif re.search(r"-\w*e\b|-r\b", text) and UNKNOWN in text:
        yield Judged("code", "medium", "runs text that is made at run time")


def _tar(args: list[str]) -> Iterator[Judged]:
    runs = ("--to-command", "--checkpoint-action", "--use-compress-program", "-I")
    if any(arg.startswith(runs) for arg in args):
        yield Judged("process", "high", "tar runs another program")


def _pip(args: list[str]) -> Iterator[Judged]:
    if {"install", "download", "add", "i", "ci"} & set(args[:3]):
        from_url = any("://" in arg for arg in args)
        yield Judged("install", "medium" if from_url else "low", "installs software")


def _wget(args: list[str]) -> Iterator[Judged]:
    yield Judged("network", "medium", "uses the network")
    options = ("-o", "-O", "--output", "--output-document")
    yield from _written(path for option, path in pairwise(args) if option in options)


RISKS: dict[str, Callable[[list[str]], Iterator[Judged]]] = {
    "rm": _rm,
    "rmdir": _rm,
    "unlink": _rm,
    "dd": _dd,
    "chmod": _chmod,
    "chown": _chmod,
    "kill": _kill,
    "find": _find,
    "source": _source,
    ".": _source,
    "git": _git,
    "set": _set,
    "export": _set,
    "shred": _shred,
    "tar": _tar,
    "curl": _wget,
    "wget": _wget,
    **dict.fromkeys(("nc", "ncat", "netcat", "socat"), _nc),
    **dict.fromkeys(("pip", "pip3", "npm", "uv", "conda", "mamba", "apt", "apt-get"), _pip),
    **dict.fromkeys(OTHER_INTERPRETERS, _other_language),
}
"""What is risky in the arguments of these commands."""


def _plain(args: list[str]) -> list[str]:
    return [arg for arg in args if not arg.startswith("-")]


def _starts(args: list[str]) -> list[str]:
    """Where `find` begins."""
    options = (i for i, arg in enumerate(args) if arg.startswith(("-", "(", "!")))
    return args[: next(options, len(args))] or ["."]


def _written(files: Iterable[str]) -> Iterator[Judged]:
    return (found for path in files if (found := paths.writing(path)))
