"""A project of the host for one jail: where bubblewrap finds it, and as which user.

If the broker is root, bubblewrap is started by `idmapped_mount.py`, in a mount namespace of its own. So no
mount of a project is ever on the host, where removing the directories of a sandbox would remove its files.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from . import idmapped_mount
from .base import LaunchError
from .host_project import HostProject

_PROGRAM = (sys.executable, "-P", "-m", idmapped_mount.__name__)


@dataclass(frozen=True, slots=True)
class MountedProject:
    """A project of one jail.

    Attributes:
        path: where bubblewrap finds it.
        command: the beginning of the command that starts bubblewrap.
        descriptors: which that command inherits. `close` closes them.
    """

    path: Path
    command: Sequence[str] = ()
    descriptors: Sequence[int] = ()

    @classmethod
    def of(cls, project: HostProject, target: Path, uid: int | None) -> MountedProject:
        """Return how a jail gets a project.

        Args:
            target: a directory to make, on which the project is mounted in the jail's namespace.
            uid: the user of the jail's code; None if it is the broker's, who has its own rights there.

        Raises:
            LaunchError: it was replaced meanwhile.
            OSError
        """
        if uid is None:
            return cls(project.path)
        target.mkdir(mode=0o700)
        source = _open(project.path)
        numbers = map(str, (source, *project.owner, uid))
        mode = "ro" if project.read_only else "rw"
        return cls(target, [*_PROGRAM, str(target), *numbers, mode], [source])

    def close(self) -> None:
        """Close the descriptors. Call it once."""
        for descriptor in self.descriptors:
            os.close(descriptor)


def _open(path: Path) -> int:
    """A descriptor of a directory, no component of whose path is a link any more. Raises LaunchError."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    current = os.open("/", flags)
    try:
        for name in path.parts[1:]:
            below = os.open(name, flags, dir_fd=current)
            os.close(current)
            current = below
    except OSError as error:
        os.close(current)
        raise LaunchError(f"{path} was replaced meanwhile") from error
    return current
