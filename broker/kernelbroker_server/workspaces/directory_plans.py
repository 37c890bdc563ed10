"""The layouts of a workspace: directories and files that agents expect. Does no I/O."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kernelbroker.protocol.messages import WorkspaceLayout

_MEMORY = ".memory"
_NOTES = ("task_plan", "findings", "progress")


@dataclass(frozen=True, slots=True)
class DirectoryPlan:
    """What a layout makes in a workspace, where it is missing.

    Attributes:
        files: the content by path.
    """

    directories: Sequence[str]
    files: Mapping[str, str]


def _note(name: str) -> tuple[str, str]:
    """The path of a file of notes, and what it begins with."""
    return f"{_MEMORY}/{name}.md", f"# {name.replace('_', ' ').title()}\n"


_PLANS: dict[WorkspaceLayout, DirectoryPlan] = {
    "agent": DirectoryPlan(
        ("code", "data", "output", "artifacts", "temp", _MEMORY), dict(map(_note, _NOTES))
    ),
    "analysis": DirectoryPlan(("uploads", "outputs", "temp"), {}),
}

SHARED = ("datasets", "templates")
"""The directories of shared data that belong to the layouts. All sessions read them, and none writes."""


def plan_of(layout: WorkspaceLayout | None) -> DirectoryPlan | None:
    """Return what a layout consists of; None without one."""
    return None if layout is None else _PLANS[layout]
