"""What a request is about, as far as that decides which broker answers it. No I/O."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote


class Kind(enum.Enum):
    SESSION = "session"
    """A session that is open; its owner answers."""
    NEW_SESSION = "new session"
    """A session that is opened unless it is there; who has claimed the id first answers."""
    EXECUTION = "execution"
    KEY = "key"
    """An idempotency key; who has claimed it first answers."""
    CONFIRMATION = "confirmation"
    TOKEN = "token"
    """A token that confirms code; who has issued it answers."""
    BODY = "body"
    """The body tells."""
    LOCAL = "local"
    """About this broker itself."""
    ANY = "any"
    """Any broker can answer it."""


class Subject(NamedTuple):
    kind: Kind
    name: str = ""


_ID = r"(?P<id>[A-Za-z0-9_.-]{1,64})"
_PATHS = [
    (re.compile(rf"/api/v1/sessions/{_ID}(?:/.*)?"), Kind.SESSION),
    (re.compile(rf"/e2b(?:/v[0-9]+)?/sandboxes/(?!metrics$){_ID}(?:/.*)?"), Kind.SESSION),
    (re.compile(rf"/jupyter(?:/t/[^/]+)?/api/kernels/{_ID}(?:/.*)?"), Kind.SESSION),
    (re.compile(rf"/jupyter(?:/t/[^/]+)?/api/sessions/{_ID}/?"), Kind.SESSION),
    (re.compile(rf"/api/v1/executions/{_ID}(?:/.*)?"), Kind.EXECUTION),
    (re.compile(rf"/api/v1/confirmations/{_ID}"), Kind.CONFIRMATION),
    (re.compile(r"/health(?:/.*)?|/metrics|/api/v1/(?:pool/.*|pools|metrics/history)"), Kind.LOCAL),
]
_BODIES = re.compile(r"/api/v1/(?:sessions|exec)|/mcp(?:/.*)?")
_HOST = re.compile(rf"[0-9]{{1,5}}-{_ID}")
_SANDBOX_HEADER = "E2b-Sandbox-Id"


def subject_of(method: str, target: str, headers: Mapping[str, str]) -> Subject:
    """Return what a request is about, from its head."""
    path = unquote(target.partition("?")[0])
    if (sandbox := headers.get(_SANDBOX_HEADER)) is not None:
        return Subject(Kind.SESSION, sandbox)
    label = headers.get("Host", "").partition(".")[0]
    if (found := _HOST.fullmatch(label)) is not None:
        return Subject(Kind.SESSION, found["id"])
    for pattern, kind in _PATHS:
        if (found := pattern.fullmatch(path)) is not None:
            return Subject(kind, found.groupdict().get("id", ""))
    if method == "POST":
        if key := headers.get("Idempotency-Key"):
            return Subject(Kind.KEY, key)
        if _BODIES.fullmatch(path):
            return Subject(Kind.BODY)
    return Subject(Kind.ANY)


def subject_of_body(body: bytes) -> Subject:
    """Return what a request is about whose body tells."""
    try:
        asked: Any = json.loads(body)
    except (ValueError, RecursionError):
        return Subject(Kind.ANY)
    if not isinstance(asked, dict):
        return Subject(Kind.ANY)
    parameters = asked.get("params")
    if isinstance(parameters, dict) and isinstance(called := parameters.get("arguments"), dict):
        asked = called  # of a tool of MCP
    for field, kind in (("session_id", Kind.NEW_SESSION), ("context_of", Kind.SESSION)):
        if isinstance(name := asked.get(field), str) and name:
            return Subject(kind, name)
    if isinstance(token := asked.get("confirm"), str) and token:
        return Subject(Kind.TOKEN, token)
    return Subject(Kind.ANY)
