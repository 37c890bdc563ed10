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
            for path in _found(args):
                yield [path if a == "{}" else a for a in rest[:end]]


def option_values(args: list[str], options: tuple[str, ...]) -> Iterator[str]:
    """What is given with these options: `-o x`, `-ox`, `-sSo x`, `--output=x`, `--output x`."""
    short = "".join(option[1] for option in options if len(option) == 2)
    for arg, following in pairwise([*args, ""]):
        name, equals, value = arg.partition("=")
        if arg in options:
            yield following
        elif name in options and equals:
            yield value
        elif short and (found := re.fullmatch(rf"-[a-zA-Z]*?[{short}](.*)", arg, re.DOTALL)):
            yield found[1] or following


def _alias(args: list[str]) -> list[str]:
    return [arg.partition("=")[2] for arg in args]


def _eval(args: list[str]) -> list[str]:
    return [" ".join(args)]


def _trap(args: list[str]) -> list[str]:
    return args[:1]


def _tar_programs(args: list[str]) -> list[str]:
    options = ("-I", "--use-compress-program", "--to-command", "--checkpoint-action")
    return [value.removeprefix("exec=") for value in option_values(args, options)]


CODE: dict[str, Callable[[list[str]], list[str]]] = {
    "alias": _alias,
    "eval": _eval,
    "trap": _trap,
    "tar": _tar_programs,
}
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
    if re.fullmatch(r"[0-7]?[4-7][0-7]{3}", mode) or re.search(r"[+=][rwx]*s", mode):
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
        for path in _found(args):
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


def _other_language(signs: str) -> Callable[[list[str]], Iterator[Judged]]:
    """perl, awk and others: their code is not parsed, only looked at for the plainest signs."""

    def look(args: list[str]) -> Iterator[Judged]:
        text = " ".join(args)
        if re.search(signs, text):
            yield Judged("process", "high", "code of another language runs another program")
        elif re.search(r"-\w*e\b|-r\b", text) and UNKNOWN in text:
            yield Judged("code", "medium", "runs text that is made at run time")

    return look


def _tar(args: list[str]) -> Iterator[Judged]:
    flags = [*args[:1], *(arg for arg in args if arg.startswith("-"))]
    short = [flag for flag in flags if re.fullmatch(r"-?[a-zA-Z]+", flag)]
    extracts = "x" in "".join(short) or {"--extract", "--get"} & set(args)
    for path in option_values(args, ("-C", "--directory")):
        found = paths.writing(path) if extracts else paths.reading(path)
        if found and UNKNOWN not in path:
            yield found


def _mv(args: list[str]) -> Iterator[Judged]:
    into = {"-t", "--target-directory"} & {arg.partition("=")[0] for arg in args}
    for path in _plain(args) if into else _plain(args)[:-1]:
        if UNKNOWN not in path and (found := paths.moving(path)):
            yield found


def _mount(args: list[str]) -> Iterator[Judged]:
    if _plain(args) or "-a" in args:
        yield Judged("escape", "high", "mount changes what is where")


def _sysctl(args: list[str]) -> Iterator[Judged]:
    sets = {"-w", "--write", "-p", "--load", "--system"}
    if any("=" in arg or arg in sets for arg in args):
        yield Judged("escape", "high", "sysctl changes settings of the system")


def _pip(args: list[str]) -> Iterator[Judged]:
    if {"install", "download", "add", "i", "ci"} & set(args[:3]):
        from_url = any("://" in arg for arg in args)
        yield Judged("install", "medium" if from_url else "low", "installs software")


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
    "mv": _mv,
    "mount": _mount,
    "sysctl": _sysctl,
    **dict.fromkeys(("nc", "ncat", "netcat", "socat"), _nc),
    **dict.fromkeys(("pip", "pip3", "npm", "uv", "conda", "mamba", "apt", "apt-get"), _pip),
    **{name: _other_language(signs) for name, signs in OTHER_INTERPRETERS.items()},
}
"""What is risky in the arguments of these commands."""


def _plain(args: list[str]) -> list[str]:
    return [arg for arg in args if not arg.startswith("-")]


def _starts(args: list[str]) -> list[str]:
    """Where `find` begins."""
    options = (i for i, arg in enumerate(args) if arg.startswith(("-", "(", "!")))
    return args[: next(options, len(args))] or ["."]


def _found(args: list[str]) -> list[str]:
    """What `find` may find: with the name it looks for, if it looks for one."""
    names = list(option_values(args, ("-name", "-iname")))
    if not names and not _NARROWING & set(args):
        return _starts(args)
    return [f"{start}/{name}" for start in _starts(args) for name in names or ["?"]]


_NARROWING = {"-path", "-ipath", "-regex", "-mtime", "-mmin", "-newer", "-size", "-empty", "-atime"}


def _written(files: Iterable[str]) -> Iterator[Judged]:
    return (found for path in files if (found := paths.writing(path)))
