"""Unpacks an uploaded tar into the project. No entry leaves the project's directory."""

from __future__ import annotations

import os
import posixpath
import shutil
import tarfile
from contextlib import closing, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any

from .. import environment, workspace
from ..errors import Refused, refusing
from . import project

MAX_ENTRIES = 200_000
MAX_BYTES = 8 * 1024**3
"""Of all files together; the workspace's quota may be less."""
_NAMED_LINKS = 20
"""Of those that lead out of the project."""
_CHUNK_BYTES = 1024**2
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def unpack(archive: str, replace: bool = False) -> dict[str, Any]:
    """Make the project from a tar (also gz, bz2, xz) in the workspace, which is removed.

    Only files, directories, and links to something in the project are taken. It appears when it is
    complete.

    Args:
        archive: its path, relative to the workspace.
        replace: whether an earlier project is removed.
    """
    names = workspace.components(archive)
    target = Path(environment.WORKSPACE, project.PROJECT)
    scratch = f".project-{token_hex(8)}"
    try:
        if os.path.lexists(target) and not replace:
            raise Refused(
                "conflict", "the session has a project: upload with replace=true to replace it"
            )
        workspace.make_directory([scratch])
        with refusing(archive), os.fdopen(workspace.open_file(names), "rb") as file:
            try:
                with (
                    tarfile.open(fileobj=file, mode="r|*") as tar,
                    closing(_Files(scratch)) as made,
                ):
                    files, size = _extract(tar, scratch, made)
            except (tarfile.TarError, EOFError, ValueError, UnicodeError) as error:
                raise Refused("bad_request", f"this is no complete tar archive: {error}") from error
            except OSError as error:
                if error.errno is None:  # zlib, lzma
                    raise Refused(
                        "bad_request", f"this is no complete tar archive: {error}"
                    ) from error
                raise
        if target.is_symlink() or target.is_file():
            target.unlink()
        elif target.exists():
            os.rename(target, f"{target.parent}/{scratch}-old")  # noqa: PTH104
        with refusing(project.PROJECT):
            workspace.move([scratch], [project.PROJECT])
        return {"path": project.SHOWN_ROOT, "files": files, "size": size}
    finally:
        for left in (scratch, f"{scratch}-old"):
            shutil.rmtree(Path(environment.WORKSPACE, left), ignore_errors=True)
        with suppress(OSError, Refused):
            for _ in workspace.delete(names, recursive=False):
                pass


class _Files:
    """Makes files below a directory that nobody else knows. It keeps the last one's directory open."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._names: list[str] | None = None
        self._parent = -1

    def make(self, names: list[str], mode: int) -> int:
        """Return the descriptor of a new file, which takes the place of an earlier one. Raises OSError."""
        if names[:-1] != self._names:
            self.close()
            self._parent = workspace.open_directory([self._root, *names[:-1]], make=True)
            self._names = names[:-1]
        try:
            found = os.open(names[-1], _NEW_FILE, 0o600, dir_fd=self._parent)
        except FileExistsError:  # an archive may have a name twice
            os.unlink(names[-1], dir_fd=self._parent)
            found = os.open(names[-1], _NEW_FILE, 0o600, dir_fd=self._parent)
        os.fchmod(found, mode)
        return found

    def close(self) -> None:
        if self._parent >= 0:
            os.close(self._parent)
            self._parent, self._names = -1, None


def _extract(tar: tarfile.TarFile, scratch: str, made: _Files) -> tuple[int, int]:
    links: list[tuple[list[str], str]] = []
    files = size = 0
    for number, entry in enumerate(tar):
        tar.members.clear()  # type: ignore[attr-defined]  # it remembers all of them
        if number >= MAX_ENTRIES:
            raise Refused("too_large", f"the archive has more than {MAX_ENTRIES:,} entries")
        shown = project.shown(entry.name)[:200]
        if entry.name.startswith("/") or ".." in entry.name.split("/"):
            raise Refused("security", f"{shown}: an entry of the archive would leave the project")
        names = workspace.components(entry.name)
        if entry.isdir():
            workspace.make_directory([scratch, *names])
        elif not names:
            continue
        elif entry.isreg():
            size += entry.size
            if size > MAX_BYTES:
                raise Refused(
                    "too_large", f"the archive's files have more than {MAX_BYTES:,} bytes"
                )
            content = tar.extractfile(entry)
            assert content is not None, "it is a regular file"
            with os.fdopen(made.make(names, 0o755 if entry.mode & 0o100 else 0o644), "wb") as file:
                while piece := content.read(_CHUNK_BYTES):
                    file.write(piece)
            files += 1
        elif entry.issym():
            links.append((names, entry.linkname))
        else:
            raise Refused("security", f"{shown}: a project has files, directories and links only")
    if outside := ["/".join(names) for names, linkname in links if _leads_out(names, linkname)]:
        shown = ", ".join(project.shown(name)[:200] for name in outside[:_NAMED_LINKS])
        more = f" and {len(outside) - _NAMED_LINKS:,} more" if len(outside) > _NAMED_LINKS else ""
        verb = "link leads" if len(outside) == 1 else "links lead"
        raise Refused("security", f"{shown}{more}: the {verb} out of the project")
    for names, linkname in links:  # at the end, so that nothing is written through them
        path = Path(environment.WORKSPACE, scratch, *names)
        workspace.make_directory([scratch, *names[:-1]])
        path.symlink_to(linkname)
    return files, size


def _leads_out(names: list[str], linkname: str) -> bool:
    leads = posixpath.normpath(posixpath.join("/".join(names[:-1]), linkname))
    return linkname.startswith("/") or leads == ".." or leads.startswith("../")
