"""The contract between sessions and the store of their workspaces. Does no I/O.

A workspace is a set of files, identified by its tenant and its name. One session at a time claims it. While
that session has a sandbox, the files are in the sandbox; otherwise they are in the store. The contract has
no paths of the host: `directory_store.py` uses a directory, and another store may use object storage.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..backends.base import Sandbox, Usage
from ..supervisor import Supervisor
from .checkpoint_store import CheckpointStore
from .disk_room import DiskRoom
from .stored_files import StoredFiles


@dataclass(frozen=True, slots=True)
class StoredWorkspace:
    """A workspace in the store.

    Attributes:
        session_id: the session that has it; None if there is none.
        usage: bytes and inodes at its last release.
        used_at: when a session last claimed or released it, in seconds since the epoch.
        expires_at: when it is removed, in seconds since the epoch; None while a session has it.
    """

    tenant: str
    name: str
    session_id: str | None
    usage: Usage
    used_at: float
    expires_at: float | None


class Workspace(ABC):
    """One session's claim on a workspace, from `WorkspaceStore.claim` to `release`.

    A session calls `attach` when it gets a sandbox, and `detach` when it loses it.

    Attributes:
        name: unique for the tenant.
        initial_usage: bytes and inodes at the time of the claim.
        max_size: bytes that it may hold, if it has a bound of its own.
    """

    name: str
    initial_usage: Usage
    max_size: int | None = None

    @property
    def warning(self) -> str | None:
        """What its user should know: what was not saved, and why. None if there is nothing."""
        return None

    @property
    @abstractmethod
    def is_stored(self) -> bool:
        """Whether the files outlive the session's sandbox.

        If not, a session need not `detach` from its last sandbox.
        """

    @property
    @abstractmethod
    def is_kept(self) -> bool:
        """Whether the files outlive the session."""

    @abstractmethod
    async def attach(self, sandbox: Sandbox) -> None:
        """Move the files into a sandbox. After a failure or a cancellation, `detach` still moves them back.

        Raises:
            Unavailable: they cannot be moved.
        """

    @abstractmethod
    async def detach(self, sandbox: Sandbox) -> None:
        """End all processes of the sandbox, then move the files out of it.

        A cancelled call still completes before it raises CancelledError. Other errors are logged.
        """

    @abstractmethod
    def leave(self) -> None:
        """Announce `release`: who claims the workspace now waits for it, instead of a refusal."""

    @abstractmethod
    def hand_over(self) -> None:
        """Unlock it as it is: the next broker claims it with its sandbox. No other call follows."""

    @abstractmethod
    def release(self) -> None:
        """Release the claim in the background. No other call may follow. May be called twice."""


class WorkspaceStore(ABC):
    """All workspaces of all tenants.

    Attributes:
        checkpoints: the store of checkpoints, which have copies of workspaces.
        files: the files of workspaces that no session has.
        room: of the disk that has the workspaces.
    """

    checkpoints: CheckpointStore
    files: StoredFiles
    room: DiskRoom

    @abstractmethod
    def start(self, supervisor: Supervisor) -> None:
        """Start removing expired workspaces in the background."""

    @abstractmethod
    async def stop(self) -> None:
        """Wait until all workspaces are put back. Call it after all sessions have ended."""

    @abstractmethod
    async def claim(
        self,
        tenant: str,
        session_id: str,
        *,
        name: str | None = None,
        retention: float | None = None,
        timeout: float,
        sandbox: Sandbox | None = None,
    ) -> Workspace:
        """Claim a workspace for a session, and make it if there is none.

        Args:
            name: the session's id if None.
            retention: seconds to keep it after the session, if less than the setting of the store.
            timeout: seconds to wait for an earlier session that is ending.
            sandbox: the session's own, if an earlier broker has attached it: the files are in it.

        Raises:
            Conflict: another session has it.
            Unavailable: the store cannot be written to.
        """

    def problems(self) -> Sequence[str]:
        """What cannot be read, and is left out."""
        return ()

    @abstractmethod
    async def list(self, tenant: str) -> list[StoredWorkspace]:
        """The tenant's workspaces, in use or not; the most recently used one is the last."""

    @abstractmethod
    async def delete(self, tenant: str, name: str) -> None:
        """Remove a workspace.

        Raises:
            NotFound
            Conflict: a session has it.
        """

    def host_path(self, tenant: str, name: str) -> Path | None:  # noqa: ARG002
        """The path on this machine at which an application finds the files; None if there is none."""
        return None
