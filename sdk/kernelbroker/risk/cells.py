"""Reads a cell as IPython does: Python, `!commands` and `%magics`."""

from __future__ import annotations

import ast
import contextlib
import re
import threading
import time
import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from ..protocol.findings import Language
from . import paths
from .collector import Collector

_LANGUAGES: dict[str, Language] = {
    **dict.fromkeys(["bash", "sh", "!", "sx", "system"], "shell"),
    **dict.fromkeys(["time", "timeit", "capture", "prun", "python", "python3"], "python"),
}
"""Magics whose text is code."""
_COMMANDS = ["cat", "cp", "ls", "ll", "mkdir", "mv", "rm", "rmdir", "pip", "conda", "mamba", "uv"]
"""Magics that are shell commands. IPython takes a cell of one such line without the `%`."""
_SHOWN = {"html", "svg", "latex", "markdown", "javascript", "js"}
_OPTIONS = re.compile(r"(?:-\w+(?:[ \t]*\d+)?[ \t]+)*")
_AUTOMAGIC = re.compile(rf"({'|'.join(_COMMANDS)})[ \t]+[^=(\[,.\s].*\s*")
_ESCAPES = re.compile(r"^[ \t]*(?:[!%?,;/]|>>>|In \[)|=[ \t]*[!%]|\?[ \t]*$", re.MULTILINE)
_PARSING = threading.Lock()
"""CPython counts the depth of syntax trees for all threads together (python/cpython#106905)."""


def parse(code: str, collector: Collector) -> Iterator[ast.Module]:
    """The syntax trees of a cell: one, or, if it does not parse, one for each part that does."""
    collector.step(len(code) // 100)
    with contextlib.suppress(SyntaxError):
        yield _parse(code)
        return
    if _AUTOMAGIC.fullmatch(code):
        collector.analyze_nested(code, "shell", (1, 1))
        return
    transformed = _transform(code, collector)
    try:
        tree = _parse(transformed)
    except SyntaxError as exc:
        collector.add("syntax", "low", "does not parse as Python", exc.lineno or 1)
        yield from _parts(transformed)
    else:
        blank_lines = len(code[: len(code) - len(code.lstrip())].splitlines())  # it drops these
        yield ast.increment_lineno(tree, blank_lines)


def check_magic(name: str, text: str, body: str | None, line: int, collector: Collector) -> None:
    """Analyze `%name text`, or `%%name text` with a body. A body keeps its line numbers."""
    if name == "script":
        name = next((w for w in text.split() if not w.startswith("-")), "").rpartition("/")[2]
    language = _LANGUAGES.get(name)
    if language is not None and (language == "python" or body is None):
        collector.analyze_nested(_OPTIONS.sub("", text, count=1), language, (line, 1))
    if language is not None and body is not None:
        collector.analyze_nested(body, language, (line + 1, 1), lines=True)
    elif name in _COMMANDS:
        collector.analyze_nested(f"{name} {text}", "shell", (line, 1))
    elif name in ("writefile", "file"):
        if rule := paths.writing(text.rpartition(" ")[2]):
            collector.add_rule(rule, f"%%{name}", (line, 1))
    elif body is not None and name not in _SHOWN:
        collector.add("code", "medium", "a cell magic that is not known", line)


def _parse(code: str) -> ast.Module:
    with _PARSING, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            flags = ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
            tree = compile(code, "<cell>", "exec", flags)
        except ValueError as exc:  # null bytes, lone surrogates
            raise SyntaxError(str(exc)) from exc
    assert isinstance(tree, ast.Module)
    return tree


def _transform(code: str, collector: Collector) -> str:
    """The cell after IPython's transformer; the cell itself if that takes too long."""
    if not _ESCAPES.search(code) and not code.startswith((" ", "\t")):
        return code
    try:
        from IPython.core.inputtransformer2 import TransformerManager
    except ImportError:
        collector.add("magic", "high", "magics need IPython: pip install 'kernelbroker[risk]'")
        return code

    class Transformer(TransformerManager):
        def do_one_token_transform(self, lines: list[str]) -> Any:
            """IPython tokenizes all for each magic; its search for `name?` is quadratic in a line."""
            asked = (len(line) ** 2 // 50 for line in lines if line.rstrip().endswith("?"))
            collector.step(sum(asked))
            start = time.thread_time()
            transformed = super().do_one_token_transform(lines)  # type: ignore[no-untyped-call]
            collector.step_time(start)
            return transformed

    try:
        with _PARSING, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about lines that end with \x1e and the like
            return str(Transformer().transform_cell(code))  # type: ignore[no-untyped-call]
    except (SyntaxError, RuntimeError, ValueError, IndexError):
        return code


def _parts(code: str) -> Iterator[ast.Module]:
    """Each statement at the margin that parses. The kernel's Python may be newer than this one."""
    lines = code.splitlines(keepends=True)
    starts = [i for i, line in enumerate(lines) if line.strip() and not line[0].isspace()]
    for start, end in pairwise([*starts, len(lines)]):
        with contextlib.suppress(SyntaxError):
            yield ast.increment_lineno(_parse("".join(lines[start:end])), start)
