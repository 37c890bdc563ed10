"""Attempts to leave a sandbox, to access what belongs to others, or to use more than its share.

Each module has a table of one theme. An attempt is a cell. It leaves in `verdict` a word or a list of
words: the name of the error with which the attempt failed, or what the attempt found. The table has the
expected verdicts, for both backends or, under `docker`, for containers. `prelude` has helpers of the cells.
"""

from __future__ import annotations

from dataclasses import dataclass

from . import gvisor, kubernetes


@dataclass(frozen=True, slots=True)
class Attempt:
    """One line of the table.

    Attributes:
        group: the heading under which docs/security.md counts it.
        name: what is attempted.
        code: the cell.
        refused: the expected verdicts, separated by blanks. If there are several, they depend on the
            kernel or the user.
        docker: the expected verdicts in a container, if they differ.
    """

    group: str
    name: str
    code: str
    refused: str
    docker: str | None = None

    def right(self, kind: str) -> set[str]:
        local = kind.startswith("local")
        words = self.refused if local or self.docker is None else self.docker
        if kind == "gvisor":
            also, _reason = gvisor.ALSO_RIGHT.get(self.name, ("", ""))
            words = f"{words} {also}"
        if kind == "kubernetes":
            also, _reason = kubernetes.ALSO_RIGHT.get(self.name, ("", ""))
            return {*words.split(), also}
        return set(words.split())


def all_attempts() -> list[Attempt]:
    """Return the attempts of all tables."""
    from . import files, interfaces, network, privileges, processes, rare_sockets, resources

    themes = (files, processes, privileges, interfaces, network, rare_sockets, resources)
    return [attempt for theme in themes for attempt in theme.ATTEMPTS]
