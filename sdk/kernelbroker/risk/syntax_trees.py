"""Syntax trees of shell and JavaScript, by tree-sitter, which the extra `[risk]` installs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING

from ..protocol.errors import KernelBrokerError
from ..protocol.findings import Language
from .collector import Collector, LimitExceeded

if TYPE_CHECKING:
    from tree_sitter import Language as Grammar
    from tree_sitter import Node

_PARSE_S = 0.5


class ParserMissing(KernelBrokerError):
    """Code of this language cannot be assessed here; the message says what to install."""


@cache
def _grammar(language: Language) -> Grammar:
    try:
        import tree_sitter
        import tree_sitter_bash
        import tree_sitter_javascript
    except ImportError as exc:
        message = f"assessing {language} needs {exc.name}: pip install 'kernelbroker[risk]'"
        raise ParserMissing(message) from exc
    module = tree_sitter_bash if language == "shell" else tree_sitter_javascript
    return tree_sitter.Language(module.language())


def parse(code: str, language: Language, collector: Collector) -> Node:
    """The root of the syntax tree; what does not parse becomes `ERROR` nodes.

    Malformed text of a few KB makes tree-sitter take minutes and gigabytes: its time is bounded.

    Raises:
        LimitExceeded: the text takes too much to parse.
        ParserMissing: tree-sitter is not installed.
    """
    grammar = _grammar(language)
    from tree_sitter import Parser

    source = code.encode("utf-8", "replace")
    start, calls = time.thread_time(), itertools.count()

    def read(offset: int, _point: object) -> bytes:
        return source[offset : offset + 4096]

    def is_too_much(_offset: int, _has_error: bool) -> bool:
        late = time.thread_time() - start > _PARSE_S
        return late or next(calls) > 20 + len(source) // 35  # code has 40 bytes a call or more

    try:
        return Parser(grammar).parse(read, progress_callback=is_too_much).root_node
    except ValueError as exc:  # the parser was stopped
        raise LimitExceeded from exc
    finally:
        collector.step_time(start)


def walk(root: Node, collector: Collector) -> Iterator[Node]:
    """All nodes, parents first, in the order of the text."""
    pending = [root]
    while pending:
        node = pending.pop()
        collector.step()
        yield node
        pending.extend(reversed(node.children))


def text_of(node: Node) -> str:
    return (node.text or b"").decode("utf-8", "replace")


def location(node: Node) -> tuple[int, int]:
    """Line and column, from 1."""
    return node.start_point.row + 1, node.start_point.column + 1
