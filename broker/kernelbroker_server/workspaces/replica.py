"""The contract for copies of workspaces that outlive this machine. Does no I/O.

A `DirectoryStore` with a replica keeps its files in the replica, and its own directory is a cache:
files come in when a session or a request claims a workspace, and go out while the session runs and when
it ends.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path

from ..backends.base import Usage
from .store import StoredWorkspace
from .workspace_directory import WorkspaceDirectory


class Holding(ABC):
    """The right to change the copy of one workspace, until `finish`, `give_back`, `remove` or `leave`.

    Attributes:
        warning: what a user should know: what was not saved, and why. None if there is nothing.
    """

    @property
    @abstractmethod
    def warning(self) -> str | None: ...

    @abstractmethod
    def keep_saving(self, files: Path) -> None:
        """Save the changes now and then, until `pause`. Code may change the files meanwhile."""

    @abstractmethod
    async def pause(self) -> None:
        """End what `keep_saving` has begun, since the files move now. Never raises."""

    @abstractmethod
    async def finish(self, files: Path, usage: Usage) -> bool:
        """Save the files, and end the holding. Never raises; returns whether all is saved."""

    @abstractmethod
    async def give_back(self) -> None:
        """End the holding; the files have not changed. Never raises."""

    @abstractmethod
    async def remove(self) -> None:
        """Remove the copy. Never raises."""

    @abstractmethod
    def leave(self) -> None:
        """Save nothing more; the next broker with this directory goes on."""


class Replica(ABC):
    """The copies of all workspaces of a store."""

    @abstractmethod
    async def hold(self, directory: WorkspaceDirectory, *, is_attached: bool = False) -> Holding:
        """Get the right to change a copy, and bring the files of a locked workspace up to date.

        Args:
            is_attached: the files are in the sandbox of a session, and are newer than any copy.

        Raises:
            Claimed: a broker with another directory has it.
            Unavailable: the copy cannot be read.
        """

    @abstractmethod
    async def has(self, tenant: str, name: str) -> bool:
        """Whether there is a copy. Raises Unavailable."""

    @abstractmethod
    async def list(self, tenant: str) -> list[StoredWorkspace]:
        """The copies of a tenant's workspaces. Raises Unavailable."""

    @abstractmethod
    async def reap(self) -> None:
        """Remove expired copies, if it is time for that. Never raises."""
