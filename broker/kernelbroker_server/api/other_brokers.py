"""What handlers and the server need of the other brokers, if several share a store. `cluster` has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from tornado.httputil import HTTPConnection, HTTPMessageDelegate, HTTPServerRequest


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

    async def ask(self, request: HTTPServerRequest) -> Sequence[Any]:
        """Return the answers of all others to the same GET, as JSON; none if another one has sent it."""

    def start_request(
        self, start: Callable[[], HTTPMessageDelegate], connection: HTTPConnection
    ) -> HTTPMessageDelegate:
        """Return the delegate of a new request, which `start` answers here."""

    async def relay(
        self, tenant: str, session_id: str | None, headers: Mapping[str, str]
    ) -> Relayed | None:
        """Return a connection to the owner of a session; None if this broker is it. Raises Unavailable."""


async def items_elsewhere(
    cluster: OtherBrokers | None, request: HTTPServerRequest, key: str | None = None
) -> list[Any]:
    """Return the items that other brokers have in their answers to the same GET.

    Args:
        cluster: the other brokers; None if there are none.
        key: of the list in the answer; None if the answer is the list.
    """
    answers = [] if cluster is None else await cluster.ask(request)
    lists = (each if key is None else each.get(key) for each in answers)
    return [item for each in lists if isinstance(each, list) for item in each]
