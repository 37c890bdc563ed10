"""Creates what sessions with projects need from the settings."""

from __future__ import annotations

from pathlib import Path

from .config import Settings
from .sessions.projects import ProjectRoot, ProjectRoots


def project_roots(settings: Settings, data_dir: Path) -> ProjectRoots:
    """Return the directories of the host that sessions may work on.

    Args:
        data_dir: that of the backends, which no project may contain.
    """
    own = [settings.local.data_dir, settings.docker.data_dir, settings.kubernetes.data_dir]
    own += [settings.local.run_dir, settings.docker.run_dir]
    roots = [
        ProjectRoot(
            each.path,
            each.mode == "ro",
            None if each.tenants is None else frozenset(each.tenants),
        )
        for each in settings.code.roots
    ]
    return ProjectRoots(roots, [data_dir, *(each for each in own if each is not None)])
