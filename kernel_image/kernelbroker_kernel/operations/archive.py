"""Unpacks an uploaded tar into the project. No entry leaves the project's directory."""

from __future__ import annotations

import os
import posixpath
import shutil
import tarfile
from contextlib import suppress
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
                with tarfile.open(fileobj=file, mode="r|*") as tar:
                    files, size = _extract(tar, scratch)
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


def _extract(tar: tarfile.TarFile, scratch: str) -> tuple[int, int]:
    links: list[tuple[list[str], str]] = []
    files = size = 0
    for number, entry in enumerate(tar):
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
            upload = workspace.Upload([scratch, *names])
            try:
                upload.set_mode(0o755 if entry.mode & 0o100 else 0o644)
                while piece := content.read(_CHUNK_BYTES):
                    upload.write(piece)
                upload.commit()
            finally:
                upload.close()
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
