"""What the names in JavaScript code are bound to, as far as can be told without running it.

As for Python (`names`), a name stands for everything that it is bound to anywhere in the code: first all is
gathered that can be known, then where it may be something else.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from . import trees
from .javascript_expressions import Expressions, Value, member, module_of
from .report import Report
from .values import UNKNOWN, Ref

if TYPE_CHECKING:
    from tree_sitter import Node

_ROUNDS = 3
_FEW = 4
_BINDING = {
    "variable_declarator", "assignment_expression", "augmented_assignment_expression", "import_statement",
    "function_declaration", "class_declaration",
}  # fmt: skip


class Names(Expressions):
    """Binds all names of a tree, and tells the values of its expressions."""

    def __init__(self, nodes: list[Node], report: Report) -> None:
        super().__init__(report)
        self._summed: set[int] = set()
        binding = [node for node in nodes if node.type in _BINDING]
        self._gather(binding)
        self._settled = True
        self._gather(binding)

    def _gather(self, binding: list[Node]) -> None:
        for _ in range(_ROUNDS):
            self._changed = False
            for node in binding:
                self._bind_node(node)
            self._memo.clear()
            if not self._changed:
                break

    def _bind_node(self, node: Node) -> None:
        match node.type:
            case "variable_declarator":
                self._assign(
                    node.child_by_field_name("name"), self.values(node.child_by_field_name("value"))
                )
            case "assignment_expression":
                self._assign(
                    node.child_by_field_name("left"), self.values(node.child_by_field_name("right"))
                )
            case "augmented_assignment_expression":
                self._augment(node)
            case "import_statement":
                self._import(node)
            case "function_declaration" | "class_declaration":
                if (name := node.child_by_field_name("name")) is not None:
                    self._own.add(trees.text_of(name))

    def _augment(self, node: Node) -> None:
        """`name += value`: what there was before stays known, with what comes of it."""
        target, value = node.child_by_field_name("left"), node.child_by_field_name("right")
        operator = node.child_by_field_name("operator")
        if operator is None or operator.type != "+=":
            self._assign(target, self.values(value))
            return
        values = self.terms(value)
        if node.id not in self._summed:
            known = [term for term in self.terms(target) if term is not UNKNOWN]
            # Each sum could be added to by the next: of many, only the newest is followed.
            sums = self.added(known if len(known) <= _FEW else known[-1:], values)
            if any(value is not UNKNOWN for value in sums):
                self._summed.add(node.id)
            self._assign(target, sums)
        if UNKNOWN in values or _is_repeated(node):
            self._assign(target, (UNKNOWN,))

    def _import(self, node: Node) -> None:
        modules = {Ref(module_of(name)) for name in self.texts(node.child_by_field_name("source"))}
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
                            self._bind(names[-1], {member(ref, names[0]) for ref in modules})

    def _assign(self, target: Node | None, values: Iterable[Value]) -> None:
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
                    self._bind(name, [member(ref, name) for ref in refs] or (UNKNOWN,))
                elif key is not None:
                    names = (
                        self.texts(key.named_children[0])
                        if key.type == "computed_property_name"
                        else [trees.text_of(key).strip("'\"")]
                    )
                    found = [member(ref, name) for ref in refs for name in names]
                    self._assign(inner, found or (UNKNOWN,))
                elif (left := part.child_by_field_name("left")) is not None:
                    name = trees.text_of(left)
                    self._bind(name, [member(ref, name) for ref in refs] or (UNKNOWN,))

    def _bind(self, name: str, values: Iterable[Value]) -> None:
        self._note(self._bound, name, values)


_REPEATING = {
    "for_statement", "for_in_statement", "while_statement", "do_statement", "arrow_function",
    "function_expression", "function_declaration", "method_definition",
}  # fmt: skip
_MAX_ABOVE = 30


def _is_repeated(node: Node | None) -> bool:
    """Whether it stands in a loop, or in a function; what is very deep is taken to."""
    for _ in range(_MAX_ABOVE):
        node = None if node is None else node.parent
        if node is None:
            return False
        if node.type in _REPEATING:
            return True
    return True
