"""Creates the upstreams of the egress proxy from the settings."""

from __future__ import annotations

import re
import ssl
from urllib.parse import urlsplit

from .config import ConfigError, Settings
from .config_upstreams import CredentialSettings, UpstreamSettings
from .egress.reverse_proxy import Route, Upstream, path_pattern

_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
"""What a header can hold, without a way to add another one."""


def upstreams(settings: Settings) -> list[Upstream]:
    """Return the servers that sandboxes reach at addresses of ours. Raises ConfigError."""
    return [_upstream(name, each) for name, each in settings.upstreams.items()]


def token_of(credential: CredentialSettings, key: str) -> str | None:
    """Return the token of a server. `key` is for messages. Raises ConfigError."""
    token = None if credential.token is None else credential.token.get_secret_value()
    if credential.token_file is not None:
        try:
            token = credential.token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as exc:
            raise ConfigError(f"{key}.token_file cannot be read: {exc}") from exc
    if token is not None and not _VALUE.fullmatch(token):
        raise ConfigError(f"{key}.token is empty, or has characters that no header can hold")
    return token


def tls_of(url: str, credential: CredentialSettings, key: str) -> ssl.SSLContext | None:
    """Return the TLS settings for a server; None for plain HTTP. Raises ConfigError."""
    if urlsplit(url).scheme == "http":
        return None
    try:
        return ssl.create_default_context(cafile=credential.ca_file)
    except OSError as exc:  # SSLError is one
        raise ConfigError(f"{key}.ca_file cannot be read: {exc}") from exc


def _upstream(name: str, own: UpstreamSettings) -> Upstream:
    key, parts = f"upstreams.{name}", urlsplit(own.url)
    token, methods = token_of(own, key), frozenset(own.methods)
    scheme = own.scheme
    if scheme is None:
        scheme = "Bearer" if own.header.lower() == "authorization" else ""
    headers = []
    if token is not None:
        headers.append((own.header.lower().encode(), f"{scheme} {token}".strip().encode()))
    return Upstream(
        id=name,
        name=name,
        host=parts.hostname or "",
        port=parts.port or (80 if parts.scheme == "http" else 443),
        routes=[Route(methods, path_pattern(each)) for each in own.paths],
        path=f"{parts.path.rstrip('/')}/",
        tls=tls_of(own.url, own, key),
        headers=headers,
        idle_timeout=own.idle_timeout,
    )
