"""What of a table comes back different, where Arrow has no type for it."""

from __future__ import annotations

from typing import NamedTuple

from .errors import Refused
from .safe_repr import safe_text

NAME_CHARS = 200


class Part(NamedTuple):
    """A part of a table: `column`, `row labels`, `column labels` or `attrs`, and the name of a column."""

    kind: str
    name: object = None

    @property
    def text(self) -> str | None:
        """The name as text that any JSON can hold."""
        if self.name is None and self.kind != "column":
            return None
        return safe_text(self.name, NAME_CHARS).encode("utf-8", "backslashreplace").decode()

    def __str__(self) -> str:
        if self.kind == "column":
            return f"column {self.text}"
        form = "dict" if self.kind == "attrs" else "list"
        return f"the {form} of {self.kind}" + (f" {self.text}" if self.text is not None else "")


class Changes:
    """The changes that were made to a table, each a dict of texts. Refuses them unless they are allowed."""

    def __init__(self, *, are_allowed: bool = False) -> None:
        self.are_allowed = are_allowed
        self.made: list[dict[str, str | None]] = []

    def add(self, part: Part, problem: str, remedy: str) -> None:
        """Add a change. Raises Refused if changes are not allowed."""
        if not self.are_allowed:
            raise Refused("conflict", f"{part} {problem}; with lossy=True it comes with {remedy}")
        self.note(part, f"{problem}: it comes with {remedy}")

    def note(self, part: Part, change: str) -> None:
        """Add a change that is documented, and so is never refused; listed only if others are allowed."""
        if self.are_allowed:
            self.made.append({"part": part.kind, "column": part.text, "change": change})
