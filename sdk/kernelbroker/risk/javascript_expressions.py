"""What the expressions of JavaScript code stand for, once it is known what its names do.

What is known at run time only is `UNKNOWN`, as in `expressions`. Text is put together as the code would;
nothing of the code is called.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import TYPE_CHECKING, TypeAlias

from . import javascript_folding as folding
from . import trees
from .javascript_rules import GLOBALS, MODULES, SAME_AS, TEXTS
from .knowledge import Knowledge
from .report import Report
from .values import UNKNOWN, Const, Ref, Unknown

if TYPE_CHECKING:
    from tree_sitter import Node

Value: TypeAlias = Ref | Const | Unknown
Values: TypeAlias = tuple[Value, ...]
MAX_VALUES = 8
LOADERS = {
    "require",
    "module.require",
    "process.mainModule.require",
    "process.getBuiltinModule",
    "import",
}


class Expressions(Knowledge[Value]):
    """Evaluates expressions. What names are bound to is for `javascript_names.Names` to fill in."""

    _MOST = MAX_VALUES
    _DEEPEST = 60

    def __init__(self, report: Report) -> None:
        super().__init__(report)
        self._bound: dict[str, dict[Value, None]] = {}
        self._own: set[str] = set()

    def _key(self, node: Node) -> int:
        return node.id

    def refs(self, node: Node | None) -> list[str]:
        return [value.name for value in self.values(node) if isinstance(value, Ref)]

    def texts(self, node: Node | None) -> list[str]:
        values = (_as_text(value) for value in self.values(node))
        return [value.value for value in values if isinstance(value, Const)]

    def is_unsure(self, node: Node | None) -> bool:
        """Whether this may be something that is no constant text, or is missing."""
        values = [_as_text(value) for value in self.values(node)]
        return not values or not all(isinstance(value, Const) for value in values)

    def _evaluate(self, node: Node) -> Iterator[Value]:
        match node.type:
            case "identifier" | "shorthand_property_identifier":
                yield from self._named(trees.text_of(node))
            case "string" | "template_string":
                yield from self._text(node)
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

    def _named(self, name: str) -> Iterator[Value]:
        yield from self._bound.get(name, ())
        if name in GLOBALS:
            yield Ref("globalThis")
        elif name not in self._own and name not in self._bound and name != "undefined":
            yield Ref(name)

    def _member(self, base: Node | None, name: str) -> Iterator[Value]:
        for value in self.values(base):
            if isinstance(value, Ref):
                yield member(value, name)
            elif name == "constructor":
                yield Ref("<own>.constructor")

    def _call(self, node: Node) -> Iterator[Value]:
        function = node.child_by_field_name("function") or node.child_by_field_name("constructor")
        args = arguments(node)
        first = args[0] if args else None
        for name in self.refs(function):
            if name in LOADERS or name == "<require>":
                yield from (Ref(module_of(module)) for module in self.texts(first))
            elif name == "module.createRequire":
                yield Ref("<require>")
            elif name == "Reflect.get":
                for key in self.texts(args[1] if len(args) > 1 else None):
                    yield from self._member(first, key)
            elif name in folding.DECODERS:
                decoded = (folding.decoded(name, text) for text in self.texts(first))
                yield from (Const(text) for text in decoded if text is not None)
            elif name == "String.fromCharCode":
                if codes := self._constants(args):
                    yield Const(folding.from_char_code(codes))
            elif name in folding.PLACES:
                yield Const(folding.PLACES[name])
            elif name in ("path.join", "path.resolve", "path.posix.join"):
                yield from self._joined(args)
            elif name.endswith((".bind", ".promisify")):
                yield from self.values(first if "promisify" in name else None)
                yield Ref(name.removesuffix(".bind"))
        if function is not None and function.type == "identifier":
            yield from (Ref(name) for arg in args for name in self.refs(arg) if name in MODULES)
        yield from self._method(function, args)

    def _method(self, function: Node | None, args: list[Node]) -> Iterator[Value]:
        """What methods of strings, and of arrays of them, come to."""
        if function is None or function.type != "member_expression":
            return
        base = function.child_by_field_name("object")
        name = trees.text_of(function.child_by_field_name("property") or function)
        if name == "join" and base is not None:
            for parts in self._arrays(base):
                for separator in self.texts(args[0]) if args else [","]:
                    yield Const(separator.join(parts)[: folding.MAX_TEXT])
        for text in self.texts(base):
            if (folded := folding.method(text, name, self._constants(args))) is not None:
                yield Const(folded)
                if self.is_unsure(base) or any(self.is_unsure(arg) for arg in args):
                    yield UNKNOWN

    def _joined(self, parts: list[Node]) -> Iterator[Value]:
        """`path.join`, with what is not known left out of what is."""
        ways = product(*(self.texts(part) for part in parts))
        yield from (Const(folding.joined(way)) for way in islice(ways, MAX_VALUES))
        if any(self.is_unsure(part) for part in parts):
            yield UNKNOWN

    def _constants(self, nodes: list[Node]) -> list[str] | None:
        """A text for each of them; None where one is not known."""
        known = [self.texts(node) for node in nodes]
        return [texts[0] for texts in known] if all(known) else None

    def _arrays(self, node: Node) -> Iterator[list[str]]:
        """`[...]`, `"abc".split("")`, and either reversed."""
        if node.type == "array" and (items := self._constants(node.named_children)):
            yield items
        function = node.child_by_field_name("function") if node.type == "call_expression" else None
        if function is not None and function.type == "member_expression":
            name = trees.text_of(function.child_by_field_name("property") or function)
            base = function.child_by_field_name("object")
            if name == "reverse" and base is not None:
                yield from (parts[::-1] for parts in self._arrays(base))
            elif name == "split" and arguments(node):
                for text, by in islice(
                    product(self.texts(base), self.texts(arguments(node)[0])), MAX_VALUES
                ):
                    yield text.split(by) if by else list(text)

    def _text(self, node: Node) -> Iterator[Value]:
        sums: list[Value] = [Const("")]
        for child in node.named_children:
            if child.type == "template_substitution":
                pieces = self.terms(child.named_children[0] if child.named_children else None)
            elif child.type == "escape_sequence":
                pieces = [Const(folding.unescaped(trees.text_of(child)))]
            else:
                pieces = [Const(trees.text_of(child))]
            sums = self.added(sums, pieces)
        yield from sums

    def terms(self, node: Node | None) -> list[Value]:
        """The constant texts, and `UNKNOWN` for all else."""
        found = (_as_text(value) for value in self.values(node))
        return list(dict.fromkeys(v if isinstance(v, Const) else UNKNOWN for v in found)) or [
            UNKNOWN
        ]

    def added(self, left: list[Value], right: list[Value]) -> list[Value]:
        """The texts that these come to, one after the other."""
        self._report.spend()
        sums: dict[Value, None] = {}
        for one, other in product(left, right):
            known = isinstance(one, Const) and isinstance(other, Const) and len(sums) < MAX_VALUES
            if known and len(one.value) + len(other.value) <= folding.MAX_TEXT:  # type: ignore[union-attr]
                sums[Const(one.value + other.value)] = None  # type: ignore[union-attr]
            else:
                sums[UNKNOWN] = None
        return list(sums)

    def _binary(self, node: Node) -> Iterator[Value]:
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
        sums = self.terms(first)
        for operand in reversed(operands):
            sums = self.added(sums, self.terms(operand))
        yield from sums


def _as_text(value: Value) -> Value:
    return Const(TEXTS[value.name]) if isinstance(value, Ref) and value.name in TEXTS else value


def arguments(call: Node) -> list[Node]:
    given = call.child_by_field_name("arguments")
    return [] if given is None else [arg for arg in given.named_children if arg.type != "comment"]


def module_of(name: str) -> str:
    name = name.removeprefix("node:")
    return SAME_AS.get(name, name)


def member(ref: Ref, name: str) -> Ref:
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
