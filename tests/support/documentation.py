"""The code that pages of the documentation show."""

from __future__ import annotations

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A block of a page. `printed` is the block of kind `text` that follows a program, if there is one."""

    page: str
    line: int
    kind: str
    text: str
    printed: str | None = None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """Return the pages of docs/, also those in folders."""
    return sorted(str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md"))


def blocks_of(page: str) -> list[Block]:
    """Return the blocks of a page in their order, those of printed text with the program before them."""
    text = (DOCS / page).read_text()
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        kind, content = match.groups()
        line = text.count("\n", 0, match.start()) + 1
        block = Block(page, line, kind, content)
        if kind == "text" and found and found[-1].kind in ("python", "sh"):
            before = found.pop()
            block = Block(page, before.line, before.kind, before.text, printed=content)
        found.append(block)
    return found


async def run_fragment(text: str, names: dict[str, Any]) -> None:
    """Run a fragment, which may await."""
    running = eval(compile(text, "page", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), names)
    if inspect.isawaitable(running):
        await running


def fragment(page: str, part: str) -> str:
    """The block of Python of a page that has this part."""
    (found,) = [
        each.text for each in blocks_of(page) if each.kind == "python" and part in each.text
    ]
    return found
