"""Moves files of user code from one directory of the broker to another.

Only directories that the broker made and their direct entries are renamed. Links in the files are never
followed.
"""

from __future__ import annotations

import os
import secrets
import stat
import subprocess
from pathlib import Path

_CHOWN_S = 120.0


def move_entries(source: Path, target: Path, *, replace: bool) -> int:
    """Move every entry of `source` to `target`, and return how many could not be moved.

    Args:
        replace: what to do if `target` has an entry of the same name. If true, move that entry to `source`
            under a random name. If false, leave the entry of `source` in place.
    """
    left = 0
    for entry in list(source.iterdir()):
        try:
            if os.path.lexists(target / entry.name):
                if not replace:
                    left += 1
                    continue
                unlock(target / entry.name)
                (target / entry.name).rename(source / f".{secrets.token_hex(8)}")
            unlock(entry)
            entry.rename(target / entry.name)
        except FileNotFoundError:
            pass
        except OSError:  # continue with the other entries
            left += 1
    return left


def change_owner(files: Path, user: int) -> None:
    """Give files that another backend's sandboxes have made to the user of a sandbox.

    Files of other users, such as those that an application of this machine has put there, stay theirs.
    Only root can do this; without root all sandboxes have the broker's user.

    Raises:
        OSError
    """
    earlier = files.lstat().st_uid
    if earlier in (user, os.geteuid()) or os.geteuid() != 0:
        return
    # chown(1) follows no links, changes trees of any depth, and the directory itself at last.
    command = ["chown", "-R", "-P", "--no-dereference", f"--from={earlier}", f"{user}:{user}"]
    try:
        done = subprocess.run(
            [*command, "--", str(files)], env={}, capture_output=True, timeout=_CHOWN_S, check=False
        )
    except subprocess.TimeoutExpired as exc:
        raise OSError(None, "the owner of the files could not be changed in time") from exc
    if done.returncode != 0:
        reason = done.stderr[-200:].decode(errors="replace").strip()
        raise OSError(None, f"the owner of the files cannot be changed: {reason}")


def unlock(path: Path) -> None:
    """Make a directory writable for its owner, as rename(2) to another parent requires."""
    if stat.S_ISDIR(path.lstat().st_mode):
        # O_PATH works without permission to read.
        descriptor = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
            if mode & 0o700 != 0o700:
                Path(f"/proc/self/fd/{descriptor}").chmod(mode | 0o700)
        finally:
            os.close(descriptor)
