"""The part of the contract of backends for sandboxes whose processes can be saved. No I/O."""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path


class CheckpointFailed(Exception):
    """The processes of a sandbox could not be saved or restored; the message says why."""


class ProcessSaver(ABC):
    """Saves the processes of one sandbox, or puts saved ones in their place.

    Attributes:
        images: where a directory of images may be made, which no sandbox sees.
    """

    images: Path

    @abstractmethod
    async def save_processes(self, images: Path, *, files: bool) -> None:
        """Save the processes, with their memory, and the files outside of the workspace.

        They stand still afterwards, until `resume` or the end of the sandbox. No connection to the gateway
        may be open, and nobody may use it.

        Args:
            images: an empty directory.
            files: also save the workspace.

        Raises:
            CheckpointFailed: they run on.
        """

    @abstractmethod
    async def resume(self) -> None:
        """Let the processes go on after `save_processes`. Never raises."""

    @abstractmethod
    async def restore_processes(self, images: Path) -> None:
        """Put saved processes in the place of those that run. No code of a user has run in this sandbox.

        Args:
            images: what `save_processes` has written, of a sandbox with the same directories.

        Raises:
            CheckpointFailed: the sandbox cannot be used any more.
        """
