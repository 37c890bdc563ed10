"""The credentials of a client: a token in a header, or a subprotocol of a browser's WebSocket.

Pages cannot set headers of a WebSocket. They offer subprotocols instead: `kernelbroker.v1` and one of

    kernelbroker.bearer.<base64url of the token, without padding>
    kernelbroker.ticket.<ticket>

The broker answers only with `kernelbroker.v1`. Credentials are never part of a URL, since URLs are
logged.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import secrets
from collections.abc import Iterable

from tornado.httputil import HTTPHeaders

from ..tenants.tenant import Tenant

SUBPROTOCOL = "kernelbroker.v1"
TICKET_PREFIX = "kernelbroker.ticket."
TICKET_LIFETIME_S = 30.0
_BEARER_PREFIX = "kernelbroker.bearer."
_MAX_TICKETS = 1000
"""Of one tenant. One more makes the oldest one invalid."""


CLIENT_HEADER = "X-Kernelbroker-Client"
"""In which our own clients say what they are."""
_OWN_CLIENTS = ("sdk", "console")


def client_of(headers: HTTPHeaders, default: str) -> str:
    """Return the kind of client; of our own clients the one that they name."""
    named = headers.get(CLIENT_HEADER, "")
    return named if named in _OWN_CLIENTS else default


def passed_on(headers: HTTPHeaders, token: str, request_id: str) -> dict[str, str]:
    """Return the headers of a WebSocket that another broker opens for the client of this one."""
    found = {"Authorization": f"Bearer {token}", "X-Request-ID": request_id}
    if (client := headers.get(CLIENT_HEADER)) is not None:
        found[CLIENT_HEADER] = client
    return found


def bearer_token(headers: HTTPHeaders) -> str:
    """Return the token of the Authorization header, or of a WebSocket's subprotocols; "" if none."""
    scheme, _, token = headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return token.strip()
    encoded = _subprotocol(headers, _BEARER_PREFIX)
    try:
        padded = encoded + "=" * (-len(encoded) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def ticket(headers: HTTPHeaders) -> str:
    """Return the ticket of a WebSocket's subprotocols; "" if none."""
    return _subprotocol(headers, TICKET_PREFIX)


def choose_subprotocol(offered: Iterable[str]) -> str | None:
    """Return the subprotocol that the broker answers with. It is never one with a credential."""
    return SUBPROTOCOL if SUBPROTOCOL in offered else None


def _subprotocol(headers: HTTPHeaders, prefix: str) -> str:
    if headers.get("Upgrade", "").lower() != "websocket":
        return ""
    offered = (each.strip() for each in headers.get("Sec-WebSocket-Protocol", "").split(","))
    return next((each.removeprefix(prefix) for each in offered if each.startswith(prefix)), "")


class Tickets:
    """Short-lived secrets, each of which opens one WebSocket for a tenant."""

    def __init__(self, lifetime: float = TICKET_LIFETIME_S) -> None:
        self._lifetime = lifetime
        self._tickets: dict[str, dict[str, tuple[Tenant, float]]] = {}
        """By tenant, then by ticket: the tenant, and when the ticket expires. Oldest first."""

    def issue(self, tenant: Tenant) -> str:
        """Make a ticket. The loop's clock decides when it expires."""
        now = asyncio.get_running_loop().time()
        tickets = self._tickets.setdefault(tenant.name, {})
        for old, (_, expires_at) in list(tickets.items()):
            if expires_at > now and len(tickets) < _MAX_TICKETS:
                break
            del tickets[old]
        issued = secrets.token_urlsafe(32)
        tickets[issued] = (tenant, now + self._lifetime)
        return issued

    def redeem(self, issued: str) -> Tenant | None:
        """Return the caller that got a ticket, and make the ticket invalid; None if it is not valid."""
        now = asyncio.get_running_loop().time()
        for tickets in self._tickets.values():
            tenant, expires_at = tickets.pop(issued, (None, 0.0))
            if tenant is not None:
                return tenant if expires_at > now else None
        return None
