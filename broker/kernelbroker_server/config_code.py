"""The sections about projects: directories of the host, and forges."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from .config_sections import SharedDirectory, _Section
from .config_upstreams import CredentialSettings, server_url
from .egress.host_names import normalize_host


class ProjectRootSettings(_Section):
    """A directory of the host below which sessions may work on projects. See docs/code.md."""

    path: SharedDirectory
    """The directory, as an absolute path. It and all directories below it are projects."""
    mode: Literal["ro", "rw"] = "ro"
    """`ro`: sandboxes see projects read-only. `rw`: what code changes there changes on the host."""
    tenants: tuple[str, ...] | None = None
    """Tenants that may use it; all tenants if not set."""


class ForgeSettings(CredentialSettings):
    """A forge that sandboxes clone from and push to, with a token of the broker. See docs/code.md."""

    host: str
    """Its name in the URLs of repositories, such as github.com."""
    kind: Literal["github", "gitea", "gitlab"]
    """Whose API it has. `gitea` is also Forgejo's."""
    repositories: tuple[Annotated[str, Field(pattern=r"^[\w.*-]+(/[\w.*-]+)+$")], ...] = Field(
        min_length=1
    )
    """Repositories that may be used, such as acme/shop; `*` is one segment: acme/*."""
    push: bool = True
    """Whether branches may be pushed and pull requests opened. Otherwise repositories are only read."""
    url: str | None = None
    """Where its repositories are; https://HOST if not set."""
    api: str | None = None
    """Where its API is; the usual place on its host if not set."""

    @field_validator("host")
    @classmethod
    def _normalize_host(cls, host: str) -> str:
        return normalize_host(host)

    @field_validator("url", "api")
    @classmethod
    def _is_url(cls, url: str | None) -> str | None:
        return None if url is None else server_url(url)


class CodeSettings(_Section):
    """Projects in sandboxes."""

    roots: tuple[ProjectRootSettings, ...] = ()
    """Directories of the host that sessions may mount: a list of `[[code.roots]]`. None by default."""
    forges: tuple[ForgeSettings, ...] = ()
    """Forges that templates may list in `forges`: a list of `[[code.forges]]`."""

    @model_validator(mode="after")
    def _has_each_forge_once(self) -> Self:
        hosts = [each.host for each in self.forges]
        if len(set(hosts)) < len(hosts):
            raise ValueError("forges: a host is listed twice")
        return self
