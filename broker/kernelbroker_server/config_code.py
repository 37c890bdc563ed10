"""The sections about projects: directories of the host, and forges."""

from __future__ import annotations

from typing import Literal

from .config_sections import SharedDirectory, _Section


class ProjectRootSettings(_Section):
    """A directory of the host below which sessions may work on projects. See docs/code.md."""

    path: SharedDirectory
    """The directory, as an absolute path. It and all directories below it are projects."""
    mode: Literal["ro", "rw"] = "ro"
    """`ro`: sandboxes see projects read-only. `rw`: what code changes there changes on the host."""
    tenants: tuple[str, ...] | None = None
    """Tenants that may use it; all tenants if not set."""


class CodeSettings(_Section):
    """Projects in sandboxes."""

    roots: tuple[ProjectRootSettings, ...] = ()
    """Directories of the host that sessions may mount: a list of `[[code.roots]]`. None by default."""
