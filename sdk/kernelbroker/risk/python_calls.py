"""Calls whose arguments decide: commands, code in strings, files, deleting, what is looked up by name."""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable
from typing import Any, TypeGuard

from ..protocol.findings import Level
from . import paths, trees
from .names import Names
from .python_rules import DANGEROUS_MODULES, NAMES, READERS, WRITERS
from .report import Report, worse
from .values import DOWNLOAD, Place

_MAX_COMMANDS = 4


class Calls:
    """Looks into the calls of one tree."""

    def __init__(self, names: Names, report: Report) -> None:
        self._names = names
        self._report = report

    def look(self, name: str, node: ast.Call, place: Place) -> None:
        """A call of a function of `LOOKED_INTO`."""
        LOOKED_INTO[name](self, name, node, place)

    def look_at_paths(self, node: ast.Call, names: list[str]) -> None:
        """Paths among the arguments of what reads and writes."""
        last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        last = last or next((name.rpartition(".")[2] for name in names), "")
        if last in READERS or last.startswith(("read_", "scan_")):
            of_object = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            for arg in (*of_object, *node.args, *(keyword.value for keyword in node.keywords)):
                for path in self._texts(arg):
                    if found := paths.reading(path):
                        self._add(node, *found)
                    elif last.startswith("read_") and path.startswith(
                        ("http://", "https://", "ftp://")
                    ):
                        self._add(node, "network", "low", "reads data over the network")
        if last in WRITERS:
            at = WRITERS[last]
            target = node.func.value if at < 0 and isinstance(node.func, ast.Attribute) else None
            if at >= 0 and len(node.args) > at:
                target = node.args[at]
            for path in self._texts(target):
                if found := paths.writing(path):
                    self._add(node, *found)

    # What each is looked at for.

    def command(self, name: str, node: ast.Call, _place: Place) -> None:
        """A program is run: what it is decides, where that can be told."""
        rule = NAMES[name]
        commands = self._commands(name, node)
        if not commands or not trees.is_available():
            self._add(node, rule.rule, rule.level, f"{name} {rule.reason}")
            return
        inner: Level = "medium"
        for command in commands[:_MAX_COMMANDS]:
            inner = worse(inner, self._nested(command, "shell", node))
        self._add(node, rule.rule, inner, f"{name} {rule.reason}")

    def code(self, name: str, node: ast.Call, _place: Place) -> None:
        """Text is run as code, or made into some."""
        first = _argument(node, 0, "source", "stmt", "statement", "raw_cell", "string")
        while _is_compiled(first):
            first = _argument(first, 0, "source")
        if first is None:
            return
        runs = name != "builtins.compile"
        if DOWNLOAD in self._names.refs(first):
            self._add(node, "code", "critical", f"{name} runs what was downloaded")
        elif texts := self._texts(first):
            for text in texts[:_MAX_COMMANDS]:
                self._nested(text, "python", node)
        elif self._is_no_text(name, first):
            pass
        else:
            level: Level = "high" if runs else "medium"
            self._add(node, "code", level, f"{name} runs text that is made at run time")

    def _is_no_text(self, name: str, first: ast.expr) -> bool:
        """A function that is timed, say, or a constant that no code can be."""
        if name in _TIMERS and not isinstance(first, _TEXT):
            return True
        return bool(self._names.constants(first))  # of which none is text

    def lookup(self, name: str, node: ast.Call, _place: Place) -> None:
        """`getattr` of a module, and imports, by a name that is not known before."""
        if name == "builtins.getattr":
            if len(node.args) < 2 or self._texts(node.args[1]):
                return
            for module in self._names.refs(node.args[0]):
                if module in DANGEROUS_MODULES:
                    reason = f"getattr takes something of {module} that is known at run time only"
                    self._add(node, "dynamic", "high", reason)
        elif not self._texts(_argument(node, 0, "name")):
            level: Level = "high" if name == "builtins.__import__" else "medium"
            self._add(node, "dynamic", level, f"{name} imports what is known at run time only")

    def opening(self, _name: str, node: ast.Call, _place: Place) -> None:
        """A file is opened: to read what, or to write where."""
        path, mode = _argument(node, 0, "file", "path"), _argument(node, 1, "mode", "flags")
        modes = self._texts(mode)
        writes = any(set(text) & set("wax+") for text in modes)
        writes |= any("os.O_" in ref and "RDONLY" not in ref for ref in self._all_refs(mode))
        for text in self._texts(path):
            found = paths.reading(text)
            if writes and (written := paths.writing(text)):
                found = written
            if found:
                self._add(node, *found)

    def deleting(self, name: str, node: ast.Call, _place: Place) -> None:
        whole = name == "shutil.rmtree"
        known = self._texts(_argument(node, 0, "path"))
        if not known and whole:
            self._add(node, "delete", "medium", f"{name} deletes a directory named at run time")
        for text in known:
            if found := paths.deleting(text, whole=whole):
                self._add(node, *found)

    def killing(self, name: str, node: ast.Call, _place: Place) -> None:
        numbers = self._names.constants(_argument(node, 0, "pid", "pgid"))
        level: Level = "medium"
        if name == "os.kill" and any(n in (-1, 1) for n in numbers):
            level = "critical"
        elif isinstance(_argument(node, 0), ast.Call) and "os.getppid" in self._names.refs(
            getattr(node.args[0], "func", None)
        ):
            level = "high"
        if not (isinstance(node.args[:1], list) and node.args and self._is_self(node.args[0])):
            self._add(node, "signal", level, f"{name} {NAMES[name].reason}")

    def forking(self, name: str, node: ast.Call, place: Place) -> None:
        if place.in_loop or self._names.is_recursive(place.function):
            self._add(node, "exhaustion", "critical", f"{name} in a loop is a fork bomb")
        else:
            self._add(node, "process", NAMES[name].level, f"{name} {NAMES[name].reason}")

    def unpickling(self, name: str, node: ast.Call, _place: Place) -> None:
        if DOWNLOAD in self._all_refs(_argument(node, 0, "data", "file")):
            self._add(node, "pickle", "critical", f"{name} runs what was downloaded")
        else:
            self._add(node, "pickle", NAMES[name].level, f"{name} {NAMES[name].reason}")

    def loading(self, name: str, node: ast.Call, _place: Place) -> None:
        """`yaml.load` and `numpy.load`, which are safe unless told otherwise."""
        if name == "yaml.load":
            loader = _argument(node, 1, "Loader")
            if not any("Safe" in ref or "Base" in ref for ref in self._names.refs(loader)):
                self._add(
                    node, "pickle", "medium", "yaml.load without SafeLoader runs what the data says"
                )
        elif any(self._names.constants(_argument(node, 2, "allow_pickle"))):
            self._add(node, "pickle", "low", f"{name} with allow_pickle runs what the file says")

    # Helpers.

    def _commands(self, name: str, node: ast.Call) -> list[str]:
        """The command lines that are run, as far as they are constant."""
        if name.startswith(("os.spawn", "os.posix_spawn")) or "fork_exec" in name:
            return []
        if name.startswith("os.exec") or name.endswith("create_subprocess_exec"):
            skip = 1 if name.startswith("os.execl") else 0
            words = [self._texts(arg) for arg in node.args[skip:]]
            if not name.startswith("os.execv"):
                return [shlex.join(w[0] for w in words)] if words and all(words) else []
            return []
        first = _argument(node, 0, "args", "cmd", "command", "argv")
        found: list[str] = []
        for value in self._names.constants(first):
            if isinstance(value, str):
                found.append(value)
            elif isinstance(value, tuple) and value and all(isinstance(v, str) for v in value):
                found.append(shlex.join(value))
        if not found and isinstance(first, ast.List | ast.Tuple) and self._is_python(first):
            words = [self._texts(item) or ["${_}"] for item in first.elts[1:]]
            found.append(
                " ".join(
                    ["python3", *(w[0] if w[0] == "${_}" else shlex.quote(w[0]) for w in words)]
                )
            )
        return found

    def _is_python(self, command: ast.List | ast.Tuple) -> bool:
        return bool(command.elts) and "sys.executable" in self._names.refs(command.elts[0])

    def _is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and "os.getpid" in self._names.refs(node.func)

    def _nested(self, code: str, language: Any, node: ast.AST) -> Level:
        return self._report.judge_nested(code, language, *_place(node))

    def _texts(self, node: ast.AST | None) -> list[str]:
        return self._names.texts(node)

    def _all_refs(self, node: ast.AST | None) -> list[str]:
        """Of the expression, and of what an `|` in it joins."""
        if isinstance(node, ast.BinOp):
            return self._all_refs(node.left) + self._all_refs(node.right)
        return self._names.refs(node)

    def _add(self, node: ast.AST, rule: str, level: Level, reason: str) -> None:
        self._report.add(rule, level, reason, *_place(node))


_TEXT = (ast.Constant, ast.JoinedStr, ast.BinOp, ast.Name)
_TIMERS = {"timeit.timeit", "timeit.repeat", "timeit.Timer", "cProfile.run", "profile.run"}
_Look = Callable[[Calls, str, ast.Call, Place], None]

LOOKED_INTO: dict[str, _Look] = {
    **{
        name: Calls.command
        for name, rule in NAMES.items()
        if rule.rule == "process" and "*" not in name
    },
    **dict.fromkeys(("builtins.exec", "builtins.eval", "builtins.compile"), Calls.code),
    **dict.fromkeys(("IPython.shell.run_cell", "IPython.shell.ex", "IPython.shell.ev"), Calls.code),
    **dict.fromkeys(_TIMERS, Calls.code),
    **dict.fromkeys(
        ("builtins.getattr", "builtins.__import__", "importlib.import_module"), Calls.lookup
    ),
    **dict.fromkeys(("builtins.open", "os.open", "pathlib.Path.open"), Calls.opening),
    **dict.fromkeys(
        ("shutil.rmtree", "os.remove", "os.unlink", "os.rmdir", "os.removedirs"), Calls.deleting
    ),
    **dict.fromkeys(("os.kill", "os.killpg"), Calls.killing),
    **dict.fromkeys(("os.fork", "os.forkpty"), Calls.forking),
    **dict.fromkeys(
        ("pickle.loads", "pickle.load", "dill.loads", "cloudpickle.loads", "pickle.Unpickler"),
        Calls.unpickling,
    ),
    **dict.fromkeys(("yaml.load", "numpy.load"), Calls.loading),
}


def _argument(node: ast.Call, index: int, *names: str) -> ast.expr | None:
    """An argument by its place or by one of its names."""
    if len(node.args) > index and not any(
        isinstance(a, ast.Starred) for a in node.args[: index + 1]
    ):
        return node.args[index]
    return next((keyword.value for keyword in node.keywords if keyword.arg in names), None)


def _is_compiled(node: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "compile"


def _place(node: ast.AST) -> tuple[int, int]:
    return getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
