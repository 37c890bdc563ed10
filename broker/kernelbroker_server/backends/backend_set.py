"""The backends of one broker: started, described and stopped together.

Each template has one of them. Their sandboxes lie in separate directories, since each backend removes what
dead brokers left in its own. Files of workspaces are moved between these directories by renaming, so all of
them must be on one file system.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping
from pathlib import Path

from .base import Backend, BackendUnavailable, Isolation, Rescue


class BackendSet:
    """The backends that templates use, by name.

    Args:
        backends: in the order in which they are started.
        home: the name of the one whose `data_dir` also has the workspaces and the state of the broker.

    Attributes:
        by_name: the backends.
        data_dir: that of the home backend.
    """

    def __init__(self, backends: Mapping[str, Backend], home: str) -> None:
        self.by_name = dict(backends)
        self._home = self.by_name[home]
        self.data_dir = self._home.data_dir

    @property
    def isolation(self) -> Isolation:
        """The isolation of the home backend, whose sandboxes are the default."""
        return self._home.isolation

    @property
    def weakest_isolation(self) -> Isolation:
        """The weakest isolation that code may get."""
        order = list(Isolation)
        return min((each.isolation for each in self.by_name.values()), key=order.index)

    async def start(self, rescue: Rescue | None = None) -> None:
        """Start all backends; see `Backend.start`. If one fails, none is left running.

        Raises:
            BackendUnavailable: one of them does not work, or their directories are on several file systems.
        """
        started: list[Backend] = []
        try:
            for backend in self.by_name.values():
                await backend.start(rescue)
                started.append(backend)
            for backend in started:
                await asyncio.to_thread(_expect_one_file_system, self.data_dir, backend.data_dir)
        except BaseException:
            await asyncio.gather(*(backend.stop() for backend in started))
            raise

    async def stop(self) -> None:
        """Stop all backends; see `Backend.stop`."""
        await asyncio.gather(*(backend.stop() for backend in self.by_name.values()))

    async def leave(self) -> None:
        """Stop all backends, and leave what outlives the broker; see `Backend.leave`."""
        await asyncio.gather(*(backend.leave() for backend in self.by_name.values()))

    def describe(self) -> dict[str, object]:
        """Describe the home backend, for `/health`."""
        return self._home.describe()

    def describe_all(self) -> dict[str, dict[str, object]]:
        """Describe each backend, by name, for `/health`."""
        return {name: backend.describe() for name, backend in self.by_name.items()}


def _expect_one_file_system(home: Path, other: Path) -> None:
    """Check that files can be renamed from one directory to the other. Raises BackendUnavailable."""
    if home == other:
        return
    name = f".probe-{secrets.token_hex(8)}"
    try:
        (home / name).touch()
        try:
            (home / name).rename(other / name)
        finally:
            (home / name).unlink(missing_ok=True)
            (other / name).unlink(missing_ok=True)
    except OSError as error:
        raise BackendUnavailable(
            f"Files cannot be moved from {home} to {other}: {error.strerror}. The backends of one broker "
            "share workspaces: set local.data_dir and docker.data_dir to directories of one file system."
        ) from error
