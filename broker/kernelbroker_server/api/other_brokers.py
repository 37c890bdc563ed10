"""What handlers and the server need of the other brokers, if several share a store. `cluster` has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

from tornado.httputil import HTTPConnection, HTTPMessageDelegate


class Relayed(Protocol):
    """A WebSocket to the broker that owns a session."""

    async def send(self, message: str | bytes) -> None:
        """Pass a message on to the owner."""

    async def run(
        self,
        write: Callable[[str | bytes], Awaitable[None]],
        close: Callable[[int | None, str | None], None],
    ) -> None:
        """Pass the owner's messages on until it closes the connection."""

    def abort(self) -> None:
        """The client has gone."""


class OtherBrokers(Protocol):
    """The other brokers."""

    def start_request(
        self, start: Callable[[], HTTPMessageDelegate], connection: HTTPConnection
    ) -> HTTPMessageDelegate:
        """Return the delegate of a new request, which `start` answers here."""

    async def relay(
        self, tenant: str, session_id: str | None, headers: Mapping[str, str]
    ) -> Relayed | None:
        """Return a connection to the owner of a session; None if that is this broker. Raises Unavailable."""
