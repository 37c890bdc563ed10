"""Forges that the operator lists: which repositories sessions may use there, and pull requests.

The broker calls a forge's API itself. What the sandbox says (the URL of the project, its branch) only
selects among the repositories that the operator allows.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import msgspec
from kernelbroker.protocol.codec import decode_json, encode
from kernelbroker.protocol.errors import BadRequest, Conflict, Forbidden, Unavailable
from tornado.httpclient import HTTPClientError, HTTPRequest
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from ..sessions.session import Session
from .forge_api import ForgeKind, PullRequest

_TIMEOUT_S = 30.0
_MAX_ANSWER = 4 * 1024**2
_SHOWN_CHARS = 500
_SSH = re.compile(r"(?:ssh://)?git@([\w.-]+)[:/](.+)")
_REPOSITORY = re.compile(r"[\w.-]+(?:/[\w.-]+)+")
_BRANCH = re.compile(r"(?!-)(?!.*(?:\.\.|@\{|//))[\w./+-]{1,200}")
MAX_TITLE, MAX_BODY = 250, 60_000


def forge_id(host: str) -> str:
    """The id of the upstream of a forge."""
    return f"forge/{host}"


@dataclass(frozen=True, slots=True)
class Forge:
    """One forge.

    Attributes:
        api: where its API is, without a slash at the end.
        push: whether branches may be pushed and pull requests opened.
    """

    host: str
    kind: ForgeKind
    api: str
    token: str = field(repr=False)
    repositories: Sequence[re.Pattern[str]]
    push: bool
    tls: ssl.SSLContext | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository that a session may use."""

    forge: Forge
    name: str

    @property
    def push_url(self) -> str:
        """Where git in a sandbox reaches it."""
        return f"http://forge.internal/{self.forge.host}/{self.name}.git"


class Forges:
    """All forges of the settings."""

    def __init__(self, forges: Iterable[Forge] = ()) -> None:
        self._by_host = {each.host: each for each in forges}

    def repository(self, session: Session, url: str) -> Repository:
        """Return the repository at the URL that a project came from, to push to it.

        Raises:
            BadRequest: the project came from no forge.
            Forbidden: the session may not use the forge or the repository.
        """
        found = _located(url)
        if found is None:
            raise BadRequest(
                "the project has no remote 'origin' on a forge: clone it from one, or name one with "
                "run_command('git remote add origin https://HOST/OWNER/NAME')"
            )
        host, name = found
        forge = self._by_host.get(host)
        if forge is None or forge_id(host) not in session.spec.upstreams:
            raise Forbidden(
                f"sessions of the template {session.spec.template} may not use {host[:100]}: ask your "
                "operator to add it to code.forges and to `forges` of the template"
            )
        if not any(each.fullmatch(name) for each in forge.repositories) or ".." in name:
            raise Forbidden(
                f"{name[:200]} is not among the repositories that may be used on {host}: ask your operator"
            )
        if not forge.push:
            raise Forbidden(f"repositories of {host} may only be read: ask your operator")
        return Repository(forge, name)

    async def open_pull_request(
        self, repository: Repository, head: str, base: str | None, title: str, body: str
    ) -> dict[str, Any]:
        """Open a pull request for a branch that was pushed.

        Args:
            base: the branch to merge into; the repository's default one if None.

        Returns:
            `number`, `url`, `head`, `base` and `repository`.

        Raises:
            BadRequest, Conflict, Forbidden, Unavailable: the forge refuses it, or does not answer.
        """
        forge, name = repository.forge, repository.name
        if base is None:
            described = await _asked(forge, forge.kind.repository_path(name), None)
            base = str(described.get("default_branch") or "main")
        if base == head:
            raise Conflict(
                f"the commits are on {base}, the branch to merge into: git_branch makes another one"
            )
        pull = PullRequest(name, head, base, title, body)
        path = forge.kind.pulls_path(name)
        number, page = forge.kind.opened(await _asked(forge, path, forge.kind.content(pull)))
        return {"number": number, "url": page, "head": head, "base": base, "repository": name}


def check_pull_request(title: str, body: str, base: str | None) -> None:
    """Check what a client gives for a pull request. Raises BadRequest."""
    if not title.strip() or len(title) > MAX_TITLE or "\n" in title:
        raise BadRequest(
            f"a pull request has a title of one line, with at most {MAX_TITLE} characters"
        )
    if len(body) > MAX_BODY:
        raise BadRequest(f"the body of a pull request has at most {MAX_BODY:,} characters")
    if base is not None and not _BRANCH.fullmatch(base):
        raise BadRequest(f"{base[:200]!r} is no name of a branch")


def check_clone(url: str, ref: str | None) -> None:
    """Check the URL and the branch of a clone. Raises BadRequest."""
    if any(char.isspace() or not char.isprintable() for char in url) or len(url) > 2000:
        raise BadRequest("the URL of a repository has no spaces and control characters")
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as exc:
        raise BadRequest(f"this is no URL of a repository: {exc}") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise BadRequest("a repository is cloned from https://HOST/PATH (or http://)")
    if parts.username is not None or parts.password is not None:
        raise BadRequest("the URL of a repository has no user and no password; see code.forges")
    if ref is not None and not _BRANCH.fullmatch(ref):
        raise BadRequest(f"{ref[:200]!r} is no name of a branch or tag")


async def _asked(forge: Forge, path: str, content: dict[str, Any] | None) -> dict[str, Any]:
    headers = {**forge.kind.headers(forge.token), "User-Agent": "kernelbroker"}
    body = None
    if content is not None:
        headers["Content-Type"], body = "application/json", encode(content)
    request = HTTPRequest(
        forge.api + path,
        "GET" if content is None else "POST",
        headers,
        body,
        request_timeout=_TIMEOUT_S,
        connect_timeout=_TIMEOUT_S,
        follow_redirects=False,  # they would take the token elsewhere
        ssl_options=forge.tls,
    )
    client = SimpleAsyncHTTPClient(force_instance=True, max_body_size=_MAX_ANSWER)
    try:
        answer = await client.fetch(request, raise_error=False)
    except (OSError, HTTPClientError) as exc:
        raise Unavailable(f"{forge.host} cannot be reached: {exc}", retry_after=10) from exc
    finally:
        client.close()
    return _checked(forge, answer.code, answer.body)


def _checked(forge: Forge, status: int, body: bytes) -> dict[str, Any]:
    try:
        decoded = decode_json(body or b"{}")
    except msgspec.DecodeError:
        decoded = {}
    found = decoded if isinstance(decoded, dict) else {}
    if 200 <= status < 300 and found:
        return found
    told = found.get("message") or found.get("error") or ""
    details = found.get("errors")
    said = f"{told} {details if details else ''}".strip()
    said = said.replace(forge.token, "***")[:_SHOWN_CHARS] if forge.token else said[:_SHOWN_CHARS]
    text = f"{forge.host} answered with status {status}" + (f": {said}" if said else "")
    if status in (401, 403):
        raise Forbidden(f"{text}; the token of your operator may lack the right")
    if status in (409, 422):
        raise Conflict(text)
    if status in (400, 404):
        raise BadRequest(text)
    raise Unavailable(text, retry_after=30)


def _located(url: str) -> tuple[str, str] | None:
    """The host and the name of a repository; None if the URL is of no known form."""
    if (match := _SSH.fullmatch(url)) is not None:
        host, path = match[1], match[2]
    else:
        try:
            parts = urlsplit(url)
        except ValueError:
            return None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            return None
        host, path = parts.hostname, parts.path.strip("/")
        if host == "forge.internal":
            host, _, path = path.partition("/")
    name = path.strip("/").removesuffix(".git")
    return (host.lower(), name) if _REPOSITORY.fullmatch(name) else None
