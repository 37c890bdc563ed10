"""The syntax trees of shell and JavaScript, by tree-sitter. It is an extra, and missed only when used."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from ..protocol.errors import KernelBrokerError
from ..protocol.findings import Language
from .report import Report

if TYPE_CHECKING:
    from tree_sitter import Language as Grammar
    from tree_sitter import Node


class ParserMissing(KernelBrokerError):
    """Code of this language cannot be judged here; the message says what to install."""


@cache
def _grammar(language: Language) -> Grammar:
    try:
        import tree_sitter
        import tree_sitter_bash
        import tree_sitter_javascript
    except ImportError as exc:
        raise ParserMissing(
            f"judging {language} needs {exc.name}: pip install 'kernelbroker[risk]'"
        ) from exc
    module = tree_sitter_bash if language == "shell" else tree_sitter_javascript
    return tree_sitter.Language(module.language())


def is_available() -> bool:
    """Whether shell and JavaScript can be judged."""
    try:
        _grammar("shell")
    except ParserMissing:
        return False
    return True


def parse(code: str, language: Language) -> Node:
    """The root of the tree; there is one for any text, with `ERROR` nodes where it does not parse.

    Raises:
        ParserMissing: tree-sitter is not installed.
    """
    grammar = _grammar(language)
    from tree_sitter import Parser

    return Parser(grammar).parse(code.encode("utf-8", "replace")).root_node


def walk(root: Node, report: Report) -> Iterator[Node]:
    """All nodes, parents first, in the order of the text; without recursion."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        report.spend()
        yield node
        waiting.extend(reversed(node.children))


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def place(node: Node) -> tuple[int, int]:
    """Line and column, from 1."""
    return node.start_point.row + 1, node.start_point.column + 1
