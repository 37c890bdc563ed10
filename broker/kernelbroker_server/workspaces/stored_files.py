"""The contract for the files of workspaces that no session has. Does no I/O.

While a session has a workspace, its sandbox serves the files (`service/files.py`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from kernelbroker.protocol.messages import FileList

from .directory_plans import DirectoryPlan
from .quota import Quota


class ReadableFile(Protocol):
    """An open file. It can be read after a session has got the workspace.

    Attributes:
        size: in bytes, when it was opened.
    """

    size: int

    def chunks(self, start: int, size: int) -> AsyncIterator[bytes]:
        """At most `size` bytes from `start`; fewer if the file has become shorter."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a workspace of its own, if they are less than those of the broker; None for no other.

    Attributes:
        size: bytes that it may hold.
        retention: seconds to keep it after its last use.
    """

    size: int | None = None
    retention: float | None = None


class StoredFiles(ABC):
    """The files of the workspaces that no session has.

    Paths are relative to the workspace. Links in them are not followed. Each method raises:

    Raises:
        NotFound: there is no such workspace or file.
        Conflict: a session has the workspace, or the path names something of another kind.
        BadRequest: the path is not valid.
        Unavailable: the store cannot be used now.
    """

    @abstractmethod
    async def make(
        self, tenant: str, name: str, bounds: Bounds, plan: DirectoryPlan | None, quota: Quota
    ) -> bool:
        """Make a workspace, which is then kept also while it is empty; returns whether it is new.

        Args:
            bounds: replace those of an existing workspace.
            plan: is made where it is missing.
        """

    @abstractmethod
    def open(self, tenant: str, name: str, path: str) -> AbstractAsyncContextManager[ReadableFile]:
        """Open a file to read it."""

    @abstractmethod
    async def write(
        self, tenant: str, name: str, path: str, data: AsyncIterable[bytes], quota: Quota
    ) -> None:
        """Create or replace a file, and its parents; make the workspace if there is none.

        The file appears when it is complete.

        Raises:
            TooLarge: the workspace would exceed its quota.
        """

    @abstractmethod
    async def list(self, tenant: str, name: str, path: str, *, recursive: bool) -> FileList:
        """List a directory, sorted by path. Anything else gives its own entry."""

    @abstractmethod
    async def delete(self, tenant: str, name: str, path: str, *, recursive: bool) -> None:
        """Delete a file, a link, an empty directory, or with `recursive` any directory."""
