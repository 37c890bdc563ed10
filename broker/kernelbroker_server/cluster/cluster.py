"""What a broker has besides a lone one, if it shares its store: created, started and stopped together."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from kernelbroker.protocol.errors import Unavailable
from tornado.httpclient import AsyncHTTPClient, HTTPError
from tornado.httputil import HTTPConnection, HTTPHeaders, HTTPMessageDelegate, HTTPServerRequest

from ..adoption import Adoption
from ..backends.backend_set import BackendSet
from ..backends.base import Rescue
from ..service.tenant_service import TenantServices
from ..sessions.broker_leases import BrokerLease, Estate
from ..sessions.postgres_store import PostgresStore
from ..supervisor import Supervisor
from ..tenants.keyring import Keyring
from .directory import Directory
from .hop import HOP_HEADER, Hop
from .membership import Membership
from .pass_on import Target
from .relay import Relay
from .router import Question, Router
from .subjects import Kind, Subject
from .usage import SharedUsage

logger = logging.getLogger(__name__)

_ASK_S = 5.0
_SETTLE_S = 0.25
_CREDENTIALS = ("Authorization", "X-API-Key")
_WS_PATH = "/api/v1/ws"


class Cluster:
    """This broker among the others."""

    def __init__(
        self,
        secret: str,
        store: PostgresStore,
        place: str,
        backends: BackendSet,
        adoption: Adoption,
        tenants: TenantServices,
        keyring: Keyring,
        rescue: Rescue,
        held: float,
    ) -> None:
        """Args:
        held: for how long a broker that ends goes on passing requests on.
        """
        self._store = store
        self._backends = backends
        self._adoption = adoption
        self._tenants = tenants
        self._rescue = rescue
        self._url = ""
        self._held = held
        self._directory = Directory(store.url)
        self.hop = Hop(secret, self._directory.now)
        self._usage = SharedUsage(self._directory, tenants)
        self.membership = Membership(store, self._directory, place, self._take_over)
        self.router = Router(
            self.membership, self.hop, tenants, keyring, lambda: self._url, self._find_confirmation
        )
        for backend in backends.by_name.values():
            backend.confirm = self.membership.confirm

    async def start(self, url: str, supervisor: Supervisor) -> None:
        """Tell the others where this broker is, and take over what they lose. Raises Unavailable.

        Args:
            url: where the others reach it.
        """
        self._url = url
        directories = {
            name: list(backend.broker_ids) for name, backend in self._backends.by_name.items()
        }
        await self._store.announce(url, directories)
        supervisor.start("other brokers", self.membership.watch)
        supervisor.start("usage at other brokers", partial(self._usage.keep, self._store.broker))

    async def leave(self) -> None:
        """Let the others open new sessions, and wait for openings that have begun here."""
        try:
            await self.membership.announce_leaving()
        except Unavailable as exc:
            logger.warning("the other brokers do not know that this one leaves: %s", exc.message)
        # Requests that came before are with their sessions by then. Nothing tells when.
        await asyncio.sleep(_SETTLE_S)
        await asyncio.gather(*(service.registry.openings_ended() for service in self._tenants))

    async def stop(self) -> None:
        """Wait for requests that were held until others have the sessions, and close everything."""
        await self.router.tunnels.stop(self._held)
        await self._directory.close()

    # For the HTTP server and its WebSockets.

    def start_request(
        self, start: Callable[[], HTTPMessageDelegate], connection: HTTPConnection
    ) -> HTTPMessageDelegate:
        """See `Router.start_request`."""
        return self.router.start_request(start, connection)

    async def ask(self, request: HTTPServerRequest) -> Sequence[Any]:
        """See `OtherBrokers.ask`. The answer of a broker that does not answer is missing."""
        if HOP_HEADER in request.headers:
            return ()
        answers = await self._ask_all(request.uri or "", request.headers)
        return [answer for answer in answers.values() if answer is not None]

    async def _find_confirmation(self, name: str, headers: HTTPHeaders) -> int | None:
        """Return the broker where a confirmation waits; this one if no other has it."""
        for broker, answer in (await self._ask_all("/api/v1/confirmations", headers)).items():
            found = answer.get("confirmations", ()) if isinstance(answer, dict) else ()
            if any(each.get("confirmation_id") == name for each in found):
                return broker
        return None

    async def _ask_all(self, uri: str, headers: HTTPHeaders) -> dict[int, Any]:
        others = await self.membership.others()
        answers = await asyncio.gather(*(self._ask(each, uri, headers) for each in others))
        return {other.id: answer for other, answer in zip(others, answers, strict=True)}

    async def _ask(self, other: BrokerLease, uri: str, given: HTTPHeaders) -> Any:
        name, value = self.router.header("GET", uri)
        headers = {each: given[each] for each in _CREDENTIALS if each in given}
        client = AsyncHTTPClient()
        try:
            answer = await client.fetch(
                other.url + uri,
                headers={**headers, name: value, "Accept": "application/json"},
                request_timeout=_ASK_S,
                follow_redirects=False,
            )
            return json.loads(answer.body)
        except (OSError, HTTPError, ValueError) as exc:
            logger.warning("the broker %d did not answer: %s", other.id, exc)
            return None

    async def relay(
        self, tenant: str, session_id: str | None, headers: Mapping[str, str]
    ) -> Relay | None:
        """Return a connection to the owner of a session that a WebSocket opens.

        Args:
            session_id: None for a new one.
            headers: of the client, with its token.

        Returns:
            None if this broker is the owner, or will be.

        Raises:
            Unavailable
        """
        kind = Kind.ANY if session_id is None else Kind.NEW_SESSION
        question = Question(Subject(kind, session_id or ""), tenant, hopped=False)

        async def choose() -> Target | None:
            owner = await self.router.decide(question)
            return None if owner is None else self.router.target(owner)

        name, value = self.router.header("GET", _WS_PATH)
        return await Relay.open(choose, _WS_PATH, {**headers, name: value})

    async def _take_over(self, estate: Estate) -> None:
        """Go on with the sessions of another broker, as far as their sandboxes are within reach.

        The others end: their clients are told.
        """
        for name, ids in estate.directories.items():
            if (backend := self._backends.by_name.get(name)) is None:
                continue
            for broker_id in ids:
                try:
                    await backend.take(broker_id, estate.epoch)
                except OSError as error:  # a broker that starts is just removing them
                    logger.warning(
                        "the sandboxes of broker %s cannot be reached: %s", broker_id, error
                    )
        await self._adoption.run(self._rescue)
