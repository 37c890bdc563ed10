"""Calls of Python that read, write, move or delete files: which ones."""

from __future__ import annotations

import ast

from . import paths
from .paths import Judged
from .python_looks import Looks, argument
from .python_paths import CHANGES, OBJECT, READERS, Use
from .values import Place


class Files(Looks):
    """Looks into calls for the paths that they are given."""

    def look_at_paths(self, node: ast.Call, names: list[str]) -> None:
        """Paths among the arguments of what reads and changes."""
        last = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        last = last or next((name.rpartition(".")[2] for name in names), "")
        known = [*names, last]
        if last.startswith(("read_", "scan_")) or any(name in READERS for name in known):
            of_object = [node.func.value] if isinstance(node.func, ast.Attribute) else []
            for arg in (*of_object, *node.args, *(keyword.value for keyword in node.keywords)):
                self._read(node, arg, last)
        if last == "replace" and "os.replace" not in names and len(node.args) != 1:
            return  # of a text; that of a path takes one argument
        for use in next((CHANGES[name] for name in known if name in CHANGES), ()):
            for path in self._texts(_used(node, use)):
                if found := _change(use, path):
                    self._add(node, *found)
        if last == "open" and not names and isinstance(node.func, ast.Attribute):
            self._opened(node, node.func.value, argument(node, 0, "mode"))

    def opening(self, _name: str, node: ast.Call, _place: Place) -> None:
        """A file is opened: to read what, or to write where."""
        path = argument(node, 0, "file", "path", "filename", "name")
        self._opened(node, path, argument(node, 1, "mode", "flags"))

    def deleting(self, name: str, node: ast.Call, _place: Place) -> None:
        whole = name == "shutil.rmtree"
        target = argument(node, 0, "path")
        if whole and self._names.is_unsure(target):
            self._add(node, "delete", "medium", f"{name} deletes a directory named at run time")
        for text in self._texts(target):
            if found := paths.deleting(text, whole=whole):
                self._add(node, *found)

    def _read(self, node: ast.Call, arg: ast.expr, function: str) -> None:
        for path in self._texts(arg):
            if found := paths.reading(path):
                self._add(node, *found)
            elif function.startswith("read_") and path.startswith(
                ("http://", "https://", "ftp://")
            ):
                self._add(node, "network", "low", "reads data over the network")

    def _opened(self, node: ast.Call, path: ast.expr | None, mode: ast.expr | None) -> None:
        writes = any(set(text) & set("wax+") for text in self._texts(mode))
        writes |= any("os.O_" in ref and "RDONLY" not in ref for ref in self._all_refs(mode))
        for text in self._texts(path):
            found = paths.reading(text)
            if writes and (written := paths.writing(text)):
                found = written
            if found:
                self._add(node, *found)


def _used(node: ast.Call, use: Use) -> ast.expr | None:
    if use.at == OBJECT:
        return node.func.value if isinstance(node.func, ast.Attribute) else None
    return argument(node, use.at, *use.keywords)


def _change(use: Use, path: str) -> Judged | None:
    match use.deed:
        case "write":
            return paths.writing(path)
        case "move":
            return paths.moving(path)
        case "delete":
            return paths.deleting(path, whole=False)
