"""Removes the names that a failed cell created.

A repetition of the cell then does not use incomplete data. Names that `import`, `def` and `class`
statements bound stay, since they are complete, and models do not repeat imports.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

OWN_NAME = re.compile(
    r"_{1,3}|_i{1,3}|_i?\d+|_[iod]h|_exit_code|In|Out|exit|quit|open|get_ipython|__\w+__"
)
"""Names that IPython or the interpreter make while a cell runs."""
_DEFINED = (ModuleType, FunctionType, BuiltinFunctionType, type)


def remove_new_names(
    user_ns: dict[str, Any], before: frozenset[str], trees: Iterable[ast.AST], removed: list[str]
) -> None:
    """Remove the names that are not in `before`, except those that the statements in `trees` define.

    Args:
        removed: gets the names that were removed, also if this is interrupted.
    """
    bindings = Bindings()
    for tree in trees:
        bindings.add(tree)
    for name in [each for each in user_ns if each not in before]:
        if type(name) is str and (OWN_NAME.fullmatch(name) or bindings.has(name, user_ns[name])):
            continue
        if type(name) is str:
            removed.append(name)
        user_ns.pop(name, None)


class Bindings:
    """The names that a cell's `import`, `def` and `class` statements bind at its top level."""

    def __init__(self) -> None:
        self._defined: set[str] = set()
        self._assigned: set[str] = set()
        self._star_imports: set[str] = set()

    def add(self, tree: ast.AST) -> None:
        """Take the statements of one cell: those of its blocks, but not those of its functions."""
        todo = [tree]
        for node in todo:  # grows on the way
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                    self._defined.add(name)
                    continue
                case ast.ClassDef(name=name):
                    self._defined.add(name)
                    continue
                case ast.Import(names=names):
                    self._defined |= {each.asname or each.name.partition(".")[0] for each in names}
                case ast.ImportFrom(module=module, names=names):
                    if names[0].name == "*":
                        self._star_imports.add(str(module))
                    self._defined |= {each.asname or each.name for each in names}
                case ast.Name(id=name, ctx=ast.Store()) | ast.ExceptHandler(name=str(name)):
                    self._assigned.add(name)
            todo += ast.iter_child_nodes(node)

    def has(self, name: str, value: object) -> bool:
        """Whether a name of the namespace, with this value, was bound by one of the statements."""
        if name in self._defined:
            # A name that the cell also assigns may be data.
            return name not in self._assigned or issubclass(type(value), _DEFINED)
        modules = (sys.modules.get(module) for module in self._star_imports)
        return any(vars(module).get(name) is value for module in modules if module is not None)
