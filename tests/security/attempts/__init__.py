"""Attempts to leave a sandbox, to see what is not its own, or to take more than its share.

A table for each theme. An attempt is a cell: it leaves in `told` a verdict, or a list of them, each of
one word: the name of the error with which it failed, or what was found. The table says which verdicts
are right, for both backends or, under `docker`, for containers. What the cells may use is in `prelude`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Attempt:
    """One line of the table.

    Attributes:
        group: the heading under which docs/security.md counts it.
        name: what is attempted.
        code: the cell.
        refused: the verdicts that are right, separated by blanks. Where there are several, they
            depend on the kernel or the user.
        docker: those in a container, where they differ.
    """

    group: str
    name: str
    code: str
    refused: str
    docker: str | None = None

    def right(self, kind: str) -> set[str]:
        words = self.refused if kind == "local" or self.docker is None else self.docker
        return set(words.split())


def all_attempts() -> list[Attempt]:
    """The whole table."""
    from . import files, interfaces, network, privileges, processes, resources

    themes = (files, processes, privileges, interfaces, network, resources)
    return [attempt for theme in themes for attempt in theme.ATTEMPTS]
