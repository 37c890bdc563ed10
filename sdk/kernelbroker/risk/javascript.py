"""Analyzes JavaScript by its `require` and `import`, by `eval` and `fetch`, and by secret paths."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from . import paths
from .collector import Collector, Rule, rules
from .syntax_trees import location, parse, text_of, walk

if TYPE_CHECKING:
    from tree_sitter import Node

MODULES: dict[str, Rule] = {
    **rules("process", "high", "runs other programs", "child_process execa shelljs cross-spawn node-pty"),
    **rules("process", "medium", "starts processes or threads", "cluster worker_threads"),
    **rules("code", "high", "runs text as code", "vm vm2 repl inspector module"),
    **rules("native", "high", "calls native code", "ffi-napi wasi v8"),
    **rules("network", "medium", "uses the network", """net tls dgram http https http2 dns axios got
        node-fetch undici ws superagent"""),
}  # fmt: skip
FUNCTIONS: dict[str, Rule] = {
    **rules("code", "high", "runs text as code", "eval Function"),
    **rules("network", "medium", "uses the network", "fetch XMLHttpRequest WebSocket EventSource"),
}
_TEXT = re.compile(r"""["'`]([^"'`$]*)["'`]""")
_TEXTS = re.compile(rf"{_TEXT.pattern}(?:\s*\+\s*{_TEXT.pattern})*")
_GLOBAL_OBJECTS = {"globalThis", "global", "window", "self"}


def analyze(code: str, collector: Collector) -> None:
    """Add the findings of a script. Raises LimitExceeded, ParserMissing."""
    for node in walk(parse(code, "javascript", collector), collector):
        if node.type in ("call_expression", "new_expression"):
            _check_call(node, collector)
        elif node.type in ("import_statement", "export_statement"):
            if source := node.child_by_field_name("source"):
                _check_module(source, collector)
        elif node.type == "ERROR":
            collector.add("syntax", "low", "does not parse as JavaScript", *location(node))


def _check_call(node: Node, collector: Collector) -> None:
    function = node.child_by_field_name("function") or node.child_by_field_name("constructor")
    arguments = node.child_by_field_name("arguments")
    name = _name(function) if function is not None else None
    given = arguments.named_children if arguments is not None else []
    texts = [_constant(argument) for argument in given]
    if name in ("require", "import") and given:
        _check_module(given[0], collector)
    elif name in ("eval", "Function") and given and texts[-1] is not None:
        collector.analyze_nested(texts[-1], "javascript", location(node))
    elif name in FUNCTIONS:
        collector.add_rule(FUNCTIONS[name], name, location(node))
    for text in texts:
        if text and (rule := paths.reading(text)):
            collector.add_rule(rule, "", location(node))


def _check_module(node: Node, collector: Collector) -> None:
    name = _constant(node)
    if name is None:
        collector.add("dynamic", "high", "requires what is known only at run time", *location(node))
    elif rule := MODULES.get(name.removeprefix("node:").partition("/")[0]):
        collector.add_rule(rule, name, location(node))


def _name(node: Node) -> str | None:
    """The name of a global function: `eval`, `globalThis.eval` or `globalThis["eval"]`."""
    owner = node.child_by_field_name("object")
    if owner is None:
        return text_of(node) if node.type in ("identifier", "import") else None
    if text_of(owner) not in _GLOBAL_OBJECTS:
        return None
    member = node.child_by_field_name("property")
    return text_of(member) if member else _constant(node.child_by_field_name("index"))


def _constant(node: Node | None) -> str | None:
    """The text of a string, of a template without substitutions, or of several joined by `+`."""
    text = "" if node is None else text_of(node)
    return "".join(_TEXT.findall(text)) if _TEXTS.fullmatch(text) else None
