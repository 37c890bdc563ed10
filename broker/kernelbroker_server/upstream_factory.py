"""Creates the upstreams of the egress proxy from the settings."""

from __future__ import annotations

import base64
import re
import ssl
from collections.abc import Sequence
from urllib.parse import urlsplit

from kernelbroker_kernel.contract import PROXY_PORT

from .config import FORGE, ConfigError, Settings
from .config_code import ForgeSettings
from .config_templates import TemplateSettings
from .config_upstreams import CredentialSettings, UpstreamSettings
from .egress.reverse_proxy import Route, Upstream, path_pattern
from .service.forge_api import FORGE_KINDS
from .service.forges import Forge, Forges, forge_id

_VALUE = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?")
"""What a header can hold, without a way to add another one."""


def upstreams(settings: Settings) -> list[Upstream]:
    """Return the servers that sandboxes reach at addresses of ours. Raises ConfigError."""
    named = [_upstream(name, each) for name, each in settings.upstreams.items()]
    return named + [_of_forge(each) for each in settings.code.forges]


def forge_clients(settings: Settings) -> Forges:
    """Return the forges, by whose APIs the broker opens pull requests. Raises ConfigError."""
    return Forges(
        Forge(
            each.host,
            FORGE_KINDS[each.kind],
            (each.api or _usual_api(each)).rstrip("/"),
            token_of(each, f"code.forges ({each.host})") or "",
            [path_pattern(pattern) for pattern in each.repositories],
            each.push,
            tls_of(each.api or _usual_api(each), each, f"code.forges ({each.host})"),
        )
        for each in settings.code.forges
    )


def forges_of(settings: Settings, template: TemplateSettings) -> list[str]:
    """Return the hosts of the forges that a template may use."""
    hosts = [each.host for each in settings.code.forges]
    return [host for host in hosts if host in template.forges or "*" in template.forges]


def git_environment(hosts: Sequence[str]) -> dict[str, str]:
    """Return variables with which git reaches these forges through the proxy, whatever URL it is given."""
    pairs = []
    for host in hosts:
        for url in (f"https://{host}/", f"http://{host}/", f"git@{host}:", f"ssh://git@{host}/"):
            pairs.append((f"url.http://{FORGE}.internal/{host}/.insteadOf", url))
    if pairs:
        pairs.append((f"http.http://{FORGE}.internal/.proxy", f"http://127.0.0.1:{PROXY_PORT}"))
    return {
        **({"GIT_CONFIG_COUNT": str(len(pairs))} if pairs else {}),
        **{f"GIT_CONFIG_KEY_{number}": key for number, (key, _) in enumerate(pairs)},
        **{f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in enumerate(pairs)},
    }


def _of_forge(own: ForgeSettings) -> Upstream:
    key, url = f"code.forges ({own.host})", own.url or f"https://{own.host}"
    parts, token = urlsplit(url), token_of(own, f"code.forges ({own.host})")
    headers, secrets = [], []
    if token is not None:
        given = f"{FORGE_KINDS[own.kind].user}:{token}".encode()
        encoded = base64.b64encode(given)
        headers.append((b"authorization", b"Basic " + encoded))
        secrets = [token.encode(), encoded]
    routes = []
    for repository in own.repositories:
        base = rf"/{path_pattern(repository).pattern}(?:\.git)?"
        routes.append(Route(frozenset({"GET"}), re.compile(f"{base}/info/refs")))
        services = "upload-pack|receive-pack" if own.push else "upload-pack"
        routes.append(Route(frozenset({"POST"}), re.compile(f"{base}/git-(?:{services})")))
    return Upstream(
        id=forge_id(own.host),
        name=FORGE,
        host=parts.hostname or "",
        port=parts.port or (80 if parts.scheme == "http" else 443),
        routes=routes,
        prefix=f"/{own.host}/",
        path=f"{parts.path.rstrip('/')}/",
        tls=tls_of(url, own, key),
        headers=headers,
        secrets=secrets,
    )


def _usual_api(own: ForgeSettings) -> str:
    if own.host == "github.com":
        return "https://api.github.com"
    path = {"github": "api/v3", "gitea": "api/v1", "gitlab": "api/v4"}[own.kind]
    return f"{own.url or f'https://{own.host}'}".rstrip("/") + f"/{path}"


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
        secrets=() if token is None else (token.encode(),),
        forwards=frozenset(each.lower().encode() for each in own.request_headers),
        idle_timeout=own.idle_timeout,
    )
