"""Which port of which sandbox a request is for.

E2B's clients name both in headers when they have one address for all sandboxes (`E2B_SANDBOX_URL`), in the
host name (`49999-ID.example.org`) when they have a domain, and not at all in URLs that they sign for files.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from tornado.httputil import HTTPServerRequest

PREFIX = "/e2b"
"""Where the control plane is. A sandbox is reached with this prefix as well as without it."""
ENVD_PORT = 49983
"""The environment daemon: files and processes."""
CODE_PORT = 49999
"""The code interpreter."""
ENVD_VERSION = "0.6.4"
"""What clients believe of the environment daemon. They offer what it can: octet streams (0.5.7),
metadata of files (0.6.2), entries in events (0.6.3), network mounts (0.6.4)."""
USER = "user"
"""The name of the only user of a sandbox, for E2B's programs."""
SANDBOX_ID = r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}"
"""The ids of sessions."""

_ID_HEADER, _PORT_HEADER = "E2b-Sandbox-Id", "E2b-Sandbox-Port"
_SANDBOX_ID = re.compile(SANDBOX_ID)
_HOST = re.compile(rf"(?P<port>[0-9]{{1,5}})-(?P<id>{SANDBOX_ID})")
_SIGNED_PATH = "/files"


@dataclass(frozen=True, slots=True)
class SandboxAddress:
    """Where a request goes.

    Attributes:
        sandbox_id: "" if only the signature in the URL tells which sandbox is meant.
        port: of the sandbox.
        path: of the request, as the sandbox's server sees it.
    """

    sandbox_id: str
    port: int
    path: str


def address_of(request: HTTPServerRequest, domains: Collection[str]) -> SandboxAddress | None:
    """Return the address that a request names; None if it is not for a sandbox.

    Args:
        domains: those below which each port of each sandbox has a host name.
    """
    path = request.path
    if path == PREFIX or path.startswith(f"{PREFIX}/"):
        path = path.removeprefix(PREFIX) or "/"
    sandbox_id, port = request.headers.get(_ID_HEADER), request.headers.get(_PORT_HEADER)
    if sandbox_id is not None and port is not None:
        number = _port(port)
        if _SANDBOX_ID.fullmatch(sandbox_id) and number is not None:
            return SandboxAddress(sandbox_id, number, path)
        return None
    name = (urlsplit(f"//{request.host}").hostname or "").lower()
    label, _, domain = name.partition(".")
    if domain in domains and (found := _HOST.fullmatch(label)):
        number = _port(found["port"])
        # Nothing of the path is ours: a user's server may have a path /e2b.
        return None if number is None else SandboxAddress(found["id"], number, request.path)
    if path == _SIGNED_PATH and "signature" in request.query_arguments:
        return SandboxAddress("", ENVD_PORT, path)
    return None


def _port(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) <= 5):
        return None
    return int(text) if 0 < int(text) < 65536 else None
