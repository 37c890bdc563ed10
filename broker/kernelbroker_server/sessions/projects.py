"""Directories of the host that sessions may work on: which ones, and for whom.

The operator lists roots. A client names a directory below one, which is mounted in a sandbox that is
launched for the session. Every launch checks the path anew, with the settings of the broker that launches.
"""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from kernelbroker.protocol.errors import BadRequest, Forbidden, NotFound
from kernelbroker.protocol.messages import ProjectOptions, SessionOptions

from ..backends.host_project import HostProject
from .routes import AUTO

PROJECT_PATH = "/workspace/project"
"""Where every project is in its sandbox."""

FindProject: TypeAlias = Callable[[], Awaitable[HostProject]]
"""Returns the directory of a session's project. Raises as `ProjectRoots.find`."""

_MAX_PATH = 4096
_MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class ProjectRoot:
    """A directory of the host below which projects may lie.

    Attributes:
        read_only: whether sandboxes see the projects read-only.
        tenants: who may use it; None for all tenants.
    """

    path: Path
    read_only: bool = True
    tenants: frozenset[str] | None = None


class ProjectRoots:
    """The operator's list.

    Args:
        forbidden: directories of the broker, which no project may contain or lie in.
    """

    def __init__(self, roots: Sequence[ProjectRoot] = (), forbidden: Sequence[Path] = ()) -> None:
        self._roots = roots
        self._forbidden = forbidden

    async def find(self, tenant: str, asked: ProjectOptions) -> HostProject:
        """Return the directory of a project.

        Raises:
            BadRequest: the path is not absolute, or has `..` in it.
            Forbidden: it is not below a root of this tenant, or leads out of it.
            NotFound: there is no such directory below a root of this tenant.
        """
        return await asyncio.to_thread(self._find, tenant, asked)

    def _find(self, tenant: str, asked: ProjectOptions) -> HostProject:
        path = _checked(asked.path or "")
        root = self._root_of(tenant, path)
        if root is None:
            raise Forbidden(
                f"{_shown(path)} is not below a directory that you may use as a project: ask your "
                "operator to add it to code.roots, or upload the project"
            )
        try:
            base = root.path.resolve(strict=True)
            found = path.resolve(strict=True)
            status = found.stat()
        except OSError:
            raise NotFound(f"there is no directory {_shown(path)}") from None
        except RuntimeError:  # a loop of links
            raise NotFound(f"there is no directory {_shown(path)}") from None
        if found != base and not found.is_relative_to(base):
            raise Forbidden(f"{_shown(path)} leads out of its root over a link")
        if not stat.S_ISDIR(status.st_mode):
            raise BadRequest(f"{_shown(path)} is no directory")
        for each in self._forbidden:
            own = each.resolve()
            if own.is_relative_to(found) or found.is_relative_to(own):
                raise Forbidden(f"{_shown(path)} has files of the broker")
        if (mount := _mount_below(found)) is not None:
            raise Forbidden(
                f"{_shown(path)} has another file system mounted at {_shown(mount)}, which would be part "
                "of the project; name a directory without one"
            )
        owner = (status.st_uid, status.st_gid)
        return HostProject(found, root.read_only or asked.read_only, owner)

    def _root_of(self, tenant: str, path: Path) -> ProjectRoot | None:
        """The innermost root of the tenant that the path is below."""
        usable = [
            root
            for root in self._roots
            if (root.tenants is None or tenant in root.tenants) and path.is_relative_to(root.path)
        ]
        return max(usable, key=lambda root: len(root.path.parts), default=None)


def project_of(options: SessionOptions) -> ProjectOptions | None:
    """Return the project of a session, in its long form. Raises BadRequest."""
    given = options.project
    if given is None or isinstance(given, str):
        if not given:
            return None
        return ProjectOptions(path=given) if given.startswith("/") else ProjectOptions(git=given)
    if (given.path is None) == (given.git is None):
        raise BadRequest("a project has either a path or the URL of a git repository")
    return given


def expect_project(options: SessionOptions) -> None:
    """Check that a session with these options may have a project. Raises BadRequest."""
    asked = project_of(options)
    if asked is None:
        return
    if asked.path is None and asked.read_only:
        raise BadRequest("read_only is for the path of a project; a clone belongs to the session")
    if asked.path is not None and (asked.ref is not None or asked.depth is not None):
        raise BadRequest("ref and depth are for the URL of a repository")
    if options.template == AUTO and asked.path is not None:
        raise BadRequest(
            "a session whose template is auto moves between sandboxes: name a template for the project"
        )


def _checked(text: str) -> Path:
    if not text.startswith("/") or "\0" in text or len(os.fsencode(text)) > _MAX_PATH:
        raise BadRequest("the path of a project is absolute, such as /srv/projects/shop")
    if ".." in text.split("/"):
        raise BadRequest("the path of a project has no '..' in it")
    return Path(text)


def _mount_below(path: Path) -> Path | None:
    """Return a mount point below a directory; None if there is none."""
    with _MOUNTS.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            point = Path(line.split(" ")[4].encode().decode("unicode_escape"))
            if point != path and point.is_relative_to(path):
                return point
    return None


def _shown(path: Path) -> str:
    return os.fsencode(path).decode(errors="backslashreplace")[:200]
