"""What IPython takes besides Python: `!commands`, `%magics` and `%%cells`, taken apart from the rest.

The lines that are not Python are put out of the way with the lines still counted as they were, and handed
on as what they are. Lines within a string or a bracket are left alone, as IPython does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from ..protocol.findings import Language
from .parsing import parse

_SHELL_CELLS = {"bash", "sh", "!", "sx", "system"}
_PYTHON_CELLS = {"time", "timeit", "capture", "prun", "python", "python3", "pypy", "debug", "memit"}
_SCRIPT_CELLS = {"javascript", "js", "html", "svg", "latex", "markdown", "perl", "ruby", "cython"}
_SHELL_MAGICS = {"sx", "system", "pip", "conda", "mamba", "uv"}
_COMMANDS = {
    "cat",
    "cp",
    "less",
    "ls",
    "ll",
    "man",
    "mkdir",
    "more",
    "mv",
    "rm",
    "rmdir",
    "pip",
    "conda",
}
"""Magics that are shell commands; IPython takes these without the `%` as well."""
_PYTHON_MAGICS = {"time", "timeit", "prun", "debug", "memit", "mprun", "lprun"}

_CELL = re.compile(r"\s*%%(!|\w+)[ \t]*([^\n]*)\n?", re.ASCII)
_LINE = re.compile(
    r"(?P<lead>\s*(?:[\w., \t*\[\]\"']+=(?!=)\s*)?)(?P<sign>!!?|%(?!%))(?P<rest>.*)", re.DOTALL
)
_ESCAPED = re.compile(r"\s*(?P<sign>[/,;])(?P<name>[\w.]+)[ \t]*(?P<rest>.*)", re.DOTALL)
_AUTOMAGIC = re.compile(rf"\s*(?:{'|'.join(sorted(_COMMANDS))})[ \t]+[^=(\[,.].*", re.DOTALL)
_HELP = re.compile(r"\s*\?{1,2}[\w.*]+\s*|\s*%{0,2}[\w.*]+\?{1,2}\s*")
_OPTIONS = re.compile(r"(?:-\w+(?:[ \t]*\d+)?[ \t]+)*")
_INSERTED = re.compile(r"\{[^{}]*\}")


class Part(NamedTuple):
    """A piece of a cell, and the line on which it begins."""

    code: str
    language: Language | None
    line: int
    name: str = ""


def parts(cell: str) -> Iterator[Part]:
    """The cell's own Python (its lines where they were), then everything that is not."""
    head = _CELL.match(cell)
    if head is None:
        yield from _lines(cell)
        return
    name, argument = head[1], head[2]
    line = cell.count("\n", 0, head.start(1)) + 1
    body = cell[head.end() :]
    interpreter = argument.split() if name == "script" else [name]
    last = next((word for word in interpreter if not word.startswith("-")), "").rpartition("/")[2]
    if last in _SHELL_CELLS:
        yield Part(body, "shell", line + 1)
    elif last in _PYTHON_CELLS:
        if last in ("time", "timeit", "prun"):
            yield Part(_OPTIONS.sub("", argument, count=1), "python", line)
        yield from (part._replace(line=part.line + line) for part in parts(body))
    elif last in ("writefile", "file"):
        yield Part(argument.split()[-1] if argument.split() else "", None, line, "writefile")
    elif last == "node":
        yield Part(body, "javascript", line + 1)
    else:
        yield Part("", None, line, "unknown" if last not in _SCRIPT_CELLS else last)


def _lines(cell: str) -> Iterator[Part]:
    """Put aside each line that is not Python."""
    python: list[str] = []
    found: list[Part] = []
    for number, logical in _logical_lines(cell):
        replaced, part = _take(logical, number)
        if part is not None:
            found.append(part)
        python.append(replaced + "\n" * (logical.count("\n") - replaced.count("\n")))
    yield Part("".join(python), "python", 1)
    yield from found


def _take(line: str, number: int) -> tuple[str, Part | None]:
    """A logical line as Python, and what it was if it was not."""
    indent = line[: len(line) - len(line.lstrip(" \t"))]
    if escape := _LINE.fullmatch(line):
        lead, sign, rest = escape["lead"], escape["sign"], escape["rest"]
        python = f"{lead}None\n" if lead.strip() else f"{indent}pass\n"
        if sign != "%":
            return python, Part(_command(rest), "shell", number)
        return python, _magic(rest, number)
    if (escape := _ESCAPED.fullmatch(line)) and not escape["rest"].startswith(("=", "(", ".")):
        quoted = escape["rest"].strip() if escape["sign"] == "/" else repr(escape["rest"].strip())
        return f"{indent}{escape['name']}({quoted})\n", None
    if _AUTOMAGIC.fullmatch(line) and not _is_python(line):
        return f"{indent}pass\n", Part(_command(line), "shell", number)
    if _HELP.fullmatch(line):
        return f"{indent}pass\n", None
    return line, None


def _magic(text: str, number: int) -> Part:
    name, _, rest = text.strip().partition(" ")
    if name in _SHELL_MAGICS | _COMMANDS:
        command = rest if name in ("sx", "system") else f"{name} {rest}"
        return Part(_command(command), "shell", number)
    if name in _PYTHON_MAGICS:
        return Part(_OPTIONS.sub("", rest.lstrip(), count=1), "python", number)
    if name == "alias":
        return Part(_command(rest.partition(" ")[2]), "shell", number)
    return Part(rest, None, number, name)


def _command(text: str) -> str:
    """A command as the shell gets it; what IPython puts in is not known here."""
    return _INSERTED.sub(lambda found: "${_}" if "," not in found[0] else found[0], text).replace(
        "\\\n", " "
    )


def _is_python(line: str) -> bool:
    try:
        parse(line.strip())
    except (SyntaxError, MemoryError, RecursionError):
        return False
    return True


_TOKEN = re.compile(
    r"""(?P<string>[rbfuRBFU]{0,2}(?:'''|\"{3}|'|\"))|(?P<open>[(\[{])|(?P<close>[)\]}])"""
    r"""|(?P<comment>\#[^\n]*)|(?P<joined>\\\n)|(?P<end>\n)|[^'\"()\[\]{}#\\\nrbfuRBFU]+|(?P<any>.)""",
    re.DOTALL,
)


def _logical_lines(cell: str) -> Iterator[tuple[int, str]]:
    """Lines with those that continue them, each with the number of its first; they add up to the cell."""
    start = position = depth = 0
    number = 1
    while position < len(cell):
        begins = cell[start : start + 200].lstrip(" \t") if position == start else ""
        if begins.startswith(("!", "%")):  # brackets and quotes are the shell's own
            position = _end_of_command(cell, position)
        else:
            token = _TOKEN.match(cell, position)
            assert token is not None
            position = token.end()
            if token["string"]:
                position = _end_of_string(cell, position, token["string"].lstrip("rbfuRBFU"))
            elif token["open"]:
                depth += 1
            elif token["close"]:
                depth = max(0, depth - 1)
            if not token["end"] or depth:
                continue
        yield number, cell[start:position]
        number += cell.count("\n", start, position)
        start = position
    if start < position:
        yield number, cell[start:position]


def _end_of_command(cell: str, position: int) -> int:
    end = re.compile(r"(?:\\\n|[^\n])*\n?").match(cell, position)
    assert end is not None
    return end.end()


def _end_of_string(cell: str, position: int, quote: str) -> int:
    """After the string that began before `position`; an unclosed one ends with its line, or the cell."""
    pattern = (
        r"(?:\\.|(?!QUOTE).)*(?:QUOTE)?"
        if len(quote) == 3
        else r"(?:\\.|(?!QUOTE)[^\n])*(?:QUOTE)?"
    )
    end = re.compile(pattern.replace("QUOTE", quote), re.DOTALL).match(cell, position)
    assert end is not None
    return end.end()
