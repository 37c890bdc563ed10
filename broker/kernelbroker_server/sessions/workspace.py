"""Moves a session's files from one sandbox's workspace to the next one's.

User code wrote these directories, and may still be writing: only top-level entries are renamed, from
one directory of the broker's own into another, so a link planted below leads nowhere.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from ..backends.directories import remove_tree


class HeldFiles:
    """The files of a session that has no sandbox at the moment."""

    def __init__(self) -> None:
        self._directory: Path | None = None

    def take(self, workspace: Path) -> None:
        """Move everything out of a workspace that is about to be removed."""
        if self._directory is None:  # outside the sandbox's own directory, which goes with it
            self._directory = Path(tempfile.mkdtemp(prefix="held-", dir=workspace.parents[1]))
        _move_entries(workspace, self._directory)

    def give(self, workspace: Path) -> None:
        """Move everything into a new workspace."""
        if self._directory is not None:
            _move_entries(self._directory, workspace)
            with contextlib.suppress(OSError):  # not empty: `discard` sees to what could not move
                self._directory.rmdir()
                self._directory = None

    async def discard(self) -> None:
        """Remove what nobody will take any more."""
        if self._directory is not None:
            await remove_tree(self._directory)
            self._directory = None


def _move_entries(source: Path, target: Path) -> None:
    """Move every entry of `source` that `target` does not have already (/data/shared, for one)."""
    for entry in source.iterdir():
        with contextlib.suppress(OSError):  # gone meanwhile, or in the way: the rest still moves
            if not os.path.lexists(target / entry.name):
                _unlock(entry)
                entry.rename(target / entry.name)


def _unlock(path: Path) -> None:
    """Renaming a directory to another parent needs the right to write to it, whoever owns it."""
    if stat.S_ISDIR(path.lstat().st_mode):
        # O_PATH: one that may not even be read is unlocked as well.
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            if mode & 0o700 != 0o700:
                Path(f"/proc/self/fd/{descriptor}").chmod(mode | 0o700)
        finally:
            os.close(descriptor)
