"""Moves what user code wrote, and may still be writing, from one directory of the broker's own to another.

Only a directory that we made, or an entry in one, is renamed, never what lies deeper: a link leads nowhere.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path


def move_entries(source: Path, target: Path) -> int:
    """Move every entry of `source` that `target` does not have already (/data/shared, for one).

    Returns how many could not be moved.
    """
    left = 0
    for entry in source.iterdir():
        try:
            if os.path.lexists(target / entry.name):
                left += 1
            else:
                unlock(entry)
                entry.rename(target / entry.name)
        except FileNotFoundError:
            pass
        except OSError:  # the rest still moves
            left += 1
    return left


def unlock(path: Path) -> None:
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
