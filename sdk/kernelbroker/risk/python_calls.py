"""Calls whose arguments decide: code in strings, what is looked up by name, signals, what is unpickled.

Commands and files have modules of their own.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import TypeGuard

from ..protocol.findings import Level
from .python_commands import Commands
from .python_files import Files
from .python_looks import argument
from .python_paths import OPENERS
from .python_rules import DANGEROUS_MODULES, NAMES
from .values import DOWNLOAD, MAX_VALUES, Function, Place


class Calls(Commands, Files):
    """Looks into all calls."""

    def look(self, name: str, node: ast.Call, place: Place) -> None:
        """A call of a function of `LOOKED_INTO`."""
        LOOKED_INTO[name](self, name, node, place)

    # What each is looked at for.

    def code(self, name: str, node: ast.Call, _place: Place) -> None:
        """Text is run as code, or made into some."""
        first = argument(node, 0, "source", "stmt", "statement", "raw_cell", "string")
        while _is_compiled(first):
            first = argument(first, 0, "source")
        if first is None and not node.args:
            return
        runs = name != "builtins.compile"
        if DOWNLOAD in self._names.refs(first):
            self._add(node, "code", "critical", f"{name} runs what was downloaded")
            return
        for text in self._texts(first)[:MAX_VALUES]:
            self._nested(text, "python", node)
        timed = name in _TIMERS and any(isinstance(v, Function) for v in self._names.values(first))
        if self._names.is_unsure(first) and not timed:
            level: Level = "high" if runs else "medium"
            self._add(node, "code", level, f"{name} runs text that is made at run time")

    def lookup(self, name: str, node: ast.Call, _place: Place) -> None:
        """`getattr` of a module, and imports, by a name that is not known before."""
        if name == "builtins.getattr":
            if len(node.args) < 2 or not self._names.is_unsure(node.args[1]):
                return
            for module in self._names.refs(node.args[0]):
                if module in DANGEROUS_MODULES:
                    reason = f"getattr takes something of {module} that is known at run time only"
                    self._add(node, "dynamic", "high", reason)
        elif self._names.is_unsure(argument(node, 0, "name")):
            level: Level = "high" if name == "builtins.__import__" else "medium"
            self._add(node, "dynamic", level, f"{name} imports what is known at run time only")

    def killing(self, name: str, node: ast.Call, _place: Place) -> None:
        numbers = self._names.constants(argument(node, 0, "pid", "pgid"))
        level: Level = "medium"
        if name == "os.kill" and any(n in (-1, 1) for n in numbers):
            level = "critical"
        elif isinstance(argument(node, 0), ast.Call) and "os.getppid" in self._names.refs(
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
        if DOWNLOAD in self._all_refs(argument(node, 0, "data", "file")):
            self._add(node, "pickle", "critical", f"{name} runs what was downloaded")
        else:
            self._add(node, "pickle", NAMES[name].level, f"{name} {NAMES[name].reason}")

    def loading(self, name: str, node: ast.Call, _place: Place) -> None:
        """`yaml.load` and `numpy.load`, which are safe unless told otherwise."""
        if name == "yaml.load":
            loader = argument(node, 1, "Loader")
            if not any("Safe" in ref or "Base" in ref for ref in self._names.refs(loader)):
                self._add(
                    node, "pickle", "medium", "yaml.load without SafeLoader runs what the data says"
                )
        elif any(self._names.constants(argument(node, 2, "allow_pickle"))):
            self._add(node, "pickle", "low", f"{name} with allow_pickle runs what the file says")

    def _is_self(self, node: ast.expr) -> bool:
        return isinstance(node, ast.Call) and "os.getpid" in self._names.refs(node.func)


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
    **dict.fromkeys(OPENERS, Calls.opening),
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


def _is_compiled(node: ast.expr | None) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "compile"
