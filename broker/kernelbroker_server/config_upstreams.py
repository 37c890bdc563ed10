"""The sections of servers that sandboxes reach through the broker, which adds the credentials."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self, TypeAlias
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator

from .config_sections import _Section

UpstreamName: TypeAlias = Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]{0,30}$")]

_TOKEN = r"^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"
"""A token of HTTP, such as the name of a header (RFC 9110, section 5.6.2)."""


class CredentialSettings(_Section):
    """A server with a credential, which the broker holds and sandboxes never see."""

    token: SecretStr | None = None
    """The credential. Without one requests are forwarded without any."""
    token_file: Path | None = None
    """A file that contains the token, in place of `token`."""
    ca_file: Path | None = None
    """A PEM file of the authorities that sign the server's certificate, in place of the system's."""

    @model_validator(mode="after")
    def _has_one_token(self) -> Self:
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file are both set; leave one out")
        return self


def server_url(url: str) -> str:
    """Check the URL of a server. Raises ValueError."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("it must be a URL such as https://api.example.org")
    if parts.username or parts.password or parts.query or parts.fragment:
        raise ValueError("a URL without user, query and fragment; the credential is `token`")
    _ = parts.port  # raises ValueError
    return url


class UpstreamSettings(CredentialSettings):
    """A server at http://NAME.internal/ in sandboxes of templates that list it. See docs/network.md."""

    url: str
    """The server, such as https://api.anthropic.com; a path is put before those of requests."""
    header: str = Field(default="Authorization", pattern=_TOKEN)
    """The header that gets the token, such as x-api-key. Whatever the sandbox sends in it is dropped."""
    scheme: str | None = Field(default=None, pattern=r"^[\x20-\x7e]*$")
    """What is put before the token, with a space. `Bearer` for Authorization, otherwise nothing, if not
    set."""
    methods: tuple[Annotated[str, Field(pattern=r"^[A-Z]{1,20}$")], ...] = ("GET", "POST")
    """The methods that are forwarded."""
    paths: tuple[Annotated[str, Field(pattern=r"^/")], ...] = ("/**",)
    """The paths that are forwarded, such as /v1/messages: `*` matches one segment, `**` anything."""
    request_headers: tuple[Annotated[str, Field(pattern=_TOKEN)], ...] = ()
    """Header fields of requests that are forwarded beside the usual ones (see docs/network.md), such as
    x-tenant."""
    idle_timeout: float = Field(default=600, gt=0)
    """How long the server may be silent."""

    _url = field_validator("url")(server_url)
