"""Tickets, with which a web page opens a WebSocket without knowing its tenant's token."""

from __future__ import annotations

import msgspec

from .base import ApiHandler
from .credentials import TICKET_LIFETIME_S, TICKET_PREFIX
from .openapi import operation


class Ticket(msgspec.Struct, kw_only=True):
    """`subprotocol` opens one WebSocket within `expires_in` seconds."""

    subprotocol: str
    expires_in: float


class NewTicket(ApiHandler):
    @operation({201: Ticket})
    async def post(self) -> None:
        """Issue a ticket for one WebSocket of this tenant.

        A server asks for it with its token and hands it to a web page. The page opens the WebSocket
        with the subprotocols `kernelbroker.v1` and `subprotocol`.
        """
        issued = self.service.tickets.issue(self.caller)
        self.set_header("Cache-Control", "no-store")
        self.reply(Ticket(subprotocol=TICKET_PREFIX + issued, expires_in=TICKET_LIFETIME_S), 201)
