"""A project of the host in a sandbox."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class HostProject:
    """A directory of the host that is mounted at /workspace/project.

    Attributes:
        path: without links. It has no other mounts in it.
        owner: the user and group that own it.
    """

    path: Path
    read_only: bool
    owner: tuple[int, int]
