"""What the names in JavaScript code stand for, as far as can be told without running it.

As for Python (`names`), a name stands for everything that it is bound to anywhere in the code.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from itertools import islice, product
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote

from . import trees
from .javascript_rules import GLOBALS, MODULES
from .report import Report
from .values import Const, Ref

if TYPE_CHECKING:
    from tree_sitter import Node

Values: TypeAlias = frozenset[Ref | Const]
_NOTHING: Values = frozenset()
_MAX_VALUES = 8
_MAX_DEPTH = 60
_MAX_TEXT = 100_000
_ROUNDS = 3
LOADERS = {
    "require",
    "module.require",
    "process.mainModule.require",
    "process.getBuiltinModule",
    "import",
}


class Names:
    def __init__(self, nodes: list[Node], report: Report) -> None:
        self._report = report
        self._bound: dict[str, set[Ref | Const]] = {}
        self._own: set[str] = set()
        self._memo: dict[int, Values] = {}
        self._depth = 0
        self._changed = False
        binding = [node for node in nodes if node.type in _BINDING]
        for _ in range(_ROUNDS):
            self._changed = False
            for node in binding:
                self._bind_node(node)
            self._memo.clear()
            if not self._changed:
                break

    def values(self, node: Node | None) -> Values:
        if node is None:
            return _NOTHING
        known = self._memo.get(node.id)
        if known is not None:
            return known
        self._report.spend()
        if self._depth > _MAX_DEPTH:
            self._report.add("depth", "medium", "could not be judged: it is nested too deep")
            return _NOTHING
        self._memo[node.id] = _NOTHING
        self._depth += 1
        try:
            found = frozenset(islice(self._evaluate(node), _MAX_VALUES))
        finally:
            self._depth -= 1
        self._memo[node.id] = found
        return found

    def refs(self, node: Node | None) -> list[str]:
        return [value.name for value in self.values(node) if isinstance(value, Ref)]

    def texts(self, node: Node | None) -> list[str]:
        found = (value.value for value in self.values(node) if isinstance(value, Const))
        return [value for value in found if isinstance(value, str)]

    # Binding.

    def _bind_node(self, node: Node) -> None:
        match node.type:
            case "variable_declarator":
                self._assign(
                    node.child_by_field_name("name"), self.values(node.child_by_field_name("value"))
                )
            case "assignment_expression" | "augmented_assignment_expression":
                self._assign(
                    node.child_by_field_name("left"), self.values(node.child_by_field_name("right"))
                )
            case "import_statement":
                self._import(node)
            case "function_declaration" | "class_declaration":
                if (name := node.child_by_field_name("name")) is not None:
                    self._own.add(trees.text_of(name))

    def _import(self, node: Node) -> None:
        modules = {Ref(_module(name)) for name in self.texts(node.child_by_field_name("source"))}
        for clause in (child for child in node.named_children if child.type == "import_clause"):
            for part in clause.named_children:
                if part.type == "identifier":
                    self._bind(trees.text_of(part), modules)
                elif part.type == "namespace_import" and part.named_children:
                    self._bind(trees.text_of(part.named_children[0]), modules)
                elif part.type == "named_imports":
                    for specifier in part.named_children:
                        names = [trees.text_of(child) for child in specifier.named_children]
                        if names:
                            self._bind(names[-1], {_member(ref, names[0]) for ref in modules})

    def _assign(self, target: Node | None, values: Iterable[Ref | Const]) -> None:
        if target is None:
            return
        if target.type == "identifier":
            self._bind(trees.text_of(target), values)
        elif target.type == "object_pattern":
            refs = [value for value in values if isinstance(value, Ref)]
            for part in target.named_children:
                key, inner = part.child_by_field_name("key"), part.child_by_field_name("value")
                if part.type == "shorthand_property_identifier_pattern":
                    name = trees.text_of(part)
                    self._bind(name, {_member(ref, name) for ref in refs})
                elif key is not None:
                    names = (
                        self.texts(key.named_children[0])
                        if key.type == "computed_property_name"
                        else [trees.text_of(key).strip("'\"")]
                    )
                    self._assign(inner, {_member(ref, name) for ref in refs for name in names})
                elif (left := part.child_by_field_name("left")) is not None:
                    name = trees.text_of(left)
                    self._bind(name, {_member(ref, name) for ref in refs})

    def _bind(self, name: str, values: Iterable[Ref | Const]) -> None:
        known = self._bound.setdefault(name, set())
        for value in values:
            if value not in known and len(known) < _MAX_VALUES:
                known.add(value)
                self._changed = True

    # Evaluating.

    def _evaluate(self, node: Node) -> Iterator[Ref | Const]:
        match node.type:
            case "identifier" | "shorthand_property_identifier":
                yield from self._named(trees.text_of(node))
            case "string" | "template_string":
                yield from (Const(text) for text in self._text(node))
            case "number":
                yield Const(trees.text_of(node))
            case "member_expression":
                name = trees.text_of(node.child_by_field_name("property") or node)
                yield from self._member(node.child_by_field_name("object"), name)
            case "subscript_expression":
                for name in self.texts(node.child_by_field_name("index")):
                    yield from self._member(node.child_by_field_name("object"), name)
            case "call_expression" | "new_expression":
                yield from self._call(node)
            case "binary_expression":
                yield from self._binary(node)
            case "parenthesized_expression" | "await_expression":
                yield from self.values(node.named_children[-1] if node.named_children else None)
            case "sequence_expression" if node.named_children:
                yield from self.values(node.named_children[-1])
            case "assignment_expression":
                yield from self.values(node.child_by_field_name("right"))
            case "ternary_expression":
                yield from self.values(node.child_by_field_name("consequence"))
                yield from self.values(node.child_by_field_name("alternative"))
            case "import":
                yield Ref("import")
            case "function_expression" | "arrow_function" | "array" | "object" | "regex":
                yield Ref("<own>")

    def _named(self, name: str) -> Iterator[Ref | Const]:
        yield from self._bound.get(name, ())
        if name in GLOBALS:
            yield Ref("globalThis")
        elif (
            name not in self._own
            and (name in MODULES or name not in self._bound)
            and name != "undefined"
        ):
            yield Ref(name)

    def _member(self, base: Node | None, name: str) -> Iterator[Ref | Const]:
        for value in self.values(base):
            if isinstance(value, Ref):
                yield _member(value, name)
            elif name == "constructor":
                yield Ref("<own>.constructor")

    def _call(self, node: Node) -> Iterator[Ref | Const]:
        function = node.child_by_field_name("function") or node.child_by_field_name("constructor")
        args = arguments(node)
        first = args[0] if args else None
        for name in self.refs(function):
            if name in LOADERS or name == "<require>":
                yield from (Ref(_module(module)) for module in self.texts(first))
            elif name in ("module.createRequire", "Reflect.get"):
                if name == "module.createRequire":
                    yield Ref("<require>")
                else:
                    for key in self.texts(args[1] if len(args) > 1 else None):
                        yield from self._member(first, key)
            elif name in ("atob", "decodeURIComponent", "unescape", "String"):
                yield from (
                    Const(text)
                    for raw in self.texts(first)
                    if (text := _decoded(name, raw)) is not None
                )
            elif name == "String.fromCharCode":
                codes = [self.texts(arg) for arg in args]
                if codes and all(codes):
                    yield Const(
                        "".join(
                            chr(int(c[0], 0))
                            for c in codes
                            if re.fullmatch(r"\d{1,5}|0x\w{1,4}", c[0])
                        )
                    )
            elif name.endswith((".bind", ".promisify")) or name == "util.promisify":
                yield from self.values(first if "promisify" in name else None)
                yield Ref(name.removesuffix(".bind"))
        yield from self._method(function, args)

    def _method(self, function: Node | None, args: list[Node]) -> Iterator[Const]:
        """What methods of strings, and of arrays of them, come to."""
        if function is None or function.type != "member_expression":
            return
        base = function.child_by_field_name("object")
        name = trees.text_of(function.child_by_field_name("property") or function)
        if name == "join" and base is not None:
            for parts in self._arrays(base):
                for separator in self.texts(args[0]) if args else [","]:
                    yield Const(separator.join(parts)[:_MAX_TEXT])
        for text in self.texts(base):
            known = [self.texts(arg) for arg in args]
            if name in ("toLowerCase", "toUpperCase", "trim", "toString"):
                yield Const(
                    {
                        "toLowerCase": text.lower(),
                        "toUpperCase": text.upper(),
                        "trim": text.strip(),
                    }.get(name, text)
                )
            elif name == "concat" and all(known):
                yield Const((text + "".join(k[0] for k in known))[:_MAX_TEXT])
            elif (
                name in ("replace", "replaceAll")
                and len(known) == 2
                and all(known)
                and len(text) < 1000
            ):
                yield Const(
                    text.replace(known[0][0], known[1][0], 1 if name == "replace" else -1)[
                        :_MAX_TEXT
                    ]
                )

    def _arrays(self, node: Node) -> Iterator[list[str]]:
        """`[...]`, `"abc".split("")`, and either reversed."""
        if node.type == "array":
            items = [self.texts(item) for item in node.named_children]
            if items and all(items):
                yield [item[0] for item in items]
        function = node.child_by_field_name("function") if node.type == "call_expression" else None
        if function is not None and function.type == "member_expression":
            name = trees.text_of(function.child_by_field_name("property") or function)
            base = function.child_by_field_name("object")
            if name == "reverse" and base is not None:
                yield from (parts[::-1] for parts in self._arrays(base))
            elif name == "split" and arguments(node):
                for text, by in islice(
                    product(self.texts(base), self.texts(arguments(node)[0])), _MAX_VALUES
                ):
                    yield text.split(by) if by else list(text)

    def _text(self, node: Node) -> Iterator[str]:
        texts = [""]
        for child in node.named_children:
            if child.type == "template_substitution":
                pieces = self.texts(child.named_children[0]) if child.named_children else []
            elif child.type == "escape_sequence":
                pieces = [_unescaped(trees.text_of(child))]
            else:
                pieces = [trees.text_of(child)]
            texts = [
                a + b
                for a, b in islice(product(texts, pieces), _MAX_VALUES)
                if len(a) + len(b) <= _MAX_TEXT
            ]
        yield from texts

    def _binary(self, node: Node) -> Iterator[Ref | Const]:
        operator = node.child_by_field_name("operator")
        kind = operator.type if operator is not None else ""
        if kind in ("||", "&&", "??"):
            yield from self.values(node.child_by_field_name("left"))
            yield from self.values(node.child_by_field_name("right"))
        if kind != "+":
            return
        # A long sum leans to the left; it is not gone down by recursion.
        operands: list[Node | None] = []
        first: Node | None = node
        while first is not None and first.type == "binary_expression":
            operands.append(first.child_by_field_name("right"))
            first = first.child_by_field_name("left")
            self._report.spend()
        sums = self.texts(first)
        for operand in reversed(operands):
            pairs = islice(product(sums, self.texts(operand)), _MAX_VALUES)
            sums = [a + b for a, b in pairs if len(a) + len(b) <= _MAX_TEXT]
            if not sums:
                return
        yield from (Const(text) for text in sums)


_BINDING = {
    "variable_declarator", "assignment_expression", "augmented_assignment_expression", "import_statement",
    "function_declaration", "class_declaration",
}  # fmt: skip


def arguments(call: Node) -> list[Node]:
    given = call.child_by_field_name("arguments")
    return [] if given is None else [arg for arg in given.named_children if arg.type != "comment"]


def _module(name: str) -> str:
    name = name.removeprefix("node:")
    return "fs.promises" if name == "fs/promises" else "dns" if name == "dns/promises" else name


def _member(ref: Ref, name: str) -> Ref:
    base = ref.name
    if base == "globalThis":
        return Ref("globalThis") if name in GLOBALS else Ref(name)
    if name in ("default", "call", "apply"):
        return ref
    if name == "require" and base.endswith("mainModule"):
        return Ref("require")
    if base == "process" and name == "mainModule":
        return Ref("process.mainModule")
    if name == "constructor":
        return Ref(
            "<own>.constructor.constructor"
            if base.endswith(".constructor")
            else "<own>.constructor"
        )
    return Ref(f"{base}.{name}"[:200])


def _decoded(name: str, text: str) -> str | None:
    try:
        if name == "atob":
            return codecs.decode(text.encode(), "base64").decode("latin-1")
        if name in ("decodeURIComponent", "unescape"):
            return unquote(text)
    except ValueError:
        return None
    return text


def _unescaped(text: str) -> str:
    if found := re.fullmatch(
        r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|u\{([0-9a-fA-F]{1,6})\})", text
    ):
        code = int(found[1] or found[2] or found[3], 16)
        return chr(code) if code < 0x110000 else ""
    return {"n": "\n", "t": "\t", "r": "\r", "0": "\0"}.get(text[1:], text[1:])
