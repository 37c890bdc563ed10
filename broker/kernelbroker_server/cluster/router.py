"""Decides for each request which broker answers it, before any handler of it runs.

This broker answers what it owns, and what any broker can answer. The rest is passed on to the owner, once.
If the owner is leaving or dead, the request waits until another broker, perhaps this one, has taken the
session over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import NamedTuple

from kernelbroker.protocol.errors import Unavailable
from tornado.httputil import (
    HTTPConnection,
    HTTPHeaders,
    HTTPMessageDelegate,
    RequestStartLine,
    ResponseStartLine,
)

from ..api.credentials import bearer_token
from ..service.policy import CONFIRMATION_KIND, token_digest
from ..service.tenant_service import TenantServices
from ..sessions.broker_leases import BrokerLease
from ..tenants.keyring import Keyring
from .hop import HOP_HEADER, Hop
from .membership import Membership
from .pass_on import Head, Passed, Target, Tunnels
from .subjects import Kind, Subject, subject_of, subject_of_body

logger = logging.getLogger(__name__)

_PATIENCE_S = 30.0
"""For how long a request waits for a broker that owns what it is about."""
_HERE, _POLL_S = None, 0.05


class Question(NamedTuple):
    """What is to be decided.

    Attributes:
        tenant: of the request's token; None if it is not one of the usual kinds.
        hopped: another broker has passed the request on to this one.
        is_list: it asks for what this broker has.
    """

    subject: Subject
    tenant: str | None
    hopped: bool
    is_list: bool = False
    headers: HTTPHeaders | None = None


class Moved(Exception):
    """The broker that passed a request on must ask again who answers it."""


class Router:
    """Passes requests on.

    Args:
        own_url: returns where this broker answers.
        find_confirmation: returns the broker where a confirmation waits, for a client with these headers.
    """

    def __init__(
        self,
        membership: Membership,
        hop: Hop,
        tenants: TenantServices,
        keyring: Keyring,
        own_url: Callable[[], str],
        find_confirmation: Callable[[str, HTTPHeaders], Awaitable[int | None]],
    ) -> None:
        self.tunnels = Tunnels()
        self._membership = membership
        self._directory = membership.directory
        self._hop = hop
        self._tenants = tenants
        self._keyring = keyring
        self._own_url = own_url
        self._find_confirmation = find_confirmation

    def start_request(
        self, start: Callable[[], HTTPMessageDelegate], connection: HTTPConnection
    ) -> HTTPMessageDelegate:
        """Return the delegate of a new request.

        Args:
            start: returns the delegate that answers it here.
        """
        return _Routed(self, start, connection)

    def question(self, method: str, target: str, headers: HTTPHeaders) -> Question:
        """Return what is to be decided.

        A header that proves nothing is left, so that brokers with different secrets do not ask each
        other on and on.
        """
        hopped = self._hop.is_valid(headers.get(HOP_HEADER), method, target)
        token = bearer_token(headers) or headers.get("X-API-Key", "")
        scheme, _, value = headers.get("Authorization", "").partition(" ")
        if not token and scheme.lower() == "token":
            token = value.strip()
        caller = self._keyring.tenant_of(token) if token else None
        subject = subject_of(method, target, headers)
        is_list = method == "GET" and subject.kind in (Kind.ANY, Kind.CONFIRMATION)
        return Question(subject, None if caller is None else caller.name, hopped, is_list, headers)

    def is_here(self, question: Question) -> bool:
        """Whether this broker answers a request, as far as it can tell at once."""
        kind, name = question.subject
        if kind is Kind.LOCAL or (question.hopped and question.is_list):
            return True
        if self._membership.leaving:
            return False
        if kind in (Kind.SESSION, Kind.NEW_SESSION):
            return self._has(question.tenant, name)
        # What is being taken over is not here yet, though it belongs to this broker.
        return kind is Kind.ANY or (question.hopped and not self._membership.is_taking)

    async def decide(self, question: Question) -> BrokerLease | None:
        """Return the broker that answers; None if it is this one.

        Raises:
            Moved: another broker has passed it on, and must decide again.
            Unavailable: no broker can answer now.
        """
        deadline = asyncio.get_running_loop().time() + _PATIENCE_S
        while not self.is_here(question):
            if question.hopped and self._membership.leaving:
                raise Moved
            owner, by_claim = await self._owner(question)
            if owner is None:
                if not self._membership.leaving:
                    return _HERE
                if (peer := await self._membership.peer()) is not None:
                    return peer
            elif owner == self._membership.broker:
                # Unless it is being taken over, or handed over, at this moment.
                if by_claim and not self._membership.leaving:
                    return _HERE
            elif question.hopped:
                raise Moved
            elif (found := await self._membership.find(owner)) is not None:
                return found
            if asyncio.get_running_loop().time() >= deadline:
                raise Unavailable("no broker has the session at present; try again", retry_after=2)
            await asyncio.sleep(_POLL_S)
        return _HERE

    def header(self, method: str, path: str) -> tuple[str, str]:
        """Return the header of a request that is passed on."""
        return HOP_HEADER, self._hop.header(self._membership.broker, method, path)

    def target(self, owner: BrokerLease | None) -> Target:
        """Return where a request goes."""
        if owner is None:
            return Target(self._own_url())
        return Target(owner.url, partial(self._membership.lost, owner.id))

    def _has(self, tenant: str | None, session_id: str) -> bool:
        return any(
            service.registry.has(session_id)
            for service in self._tenants
            if tenant is None or service.name == tenant
        )

    async def _owner(self, question: Question) -> tuple[int | None, bool]:
        """Return who answers, and whether that is so even if it does not have the session."""
        (kind, name), tenant = question.subject, question.tenant
        if kind is Kind.EXECUTION:
            owner = await self._directory.owner_of_execution(name, tenant)
            return owner, not self._membership.is_taking
        if kind is Kind.TOKEN:
            digest = token_digest(name).hex()
            return await self._directory.owner_of_entry(CONFIRMATION_KIND, digest), True
        if kind is Kind.CONFIRMATION and question.headers is not None:
            return await self._find_confirmation(name, question.headers), True
        if kind is Kind.KEY:
            return await self._claim("key", tenant, name), True
        if kind in (Kind.SESSION, Kind.NEW_SESSION):
            owner = await self._directory.owner_of_session(name, tenant)
            if owner is None and kind is Kind.NEW_SESSION:
                return await self._claim("session", tenant, name), True
            return owner, False
        return None, False

    async def _claim(self, kind: str, tenant: str | None, name: str) -> int | None:
        if tenant is None or self._membership.leaving:
            return None
        return await self._directory.claim(kind, tenant, name, self._membership.broker)


class _Routed(HTTPMessageDelegate):
    """One request. Its head decides, or its body."""

    def __init__(
        self,
        router: Router,
        start: Callable[[], HTTPMessageDelegate],
        connection: HTTPConnection,
    ) -> None:
        self._router = router
        self._start = start
        self._connection = connection
        self._delegate: HTTPMessageDelegate | None = None

    def headers_received(
        self, start_line: RequestStartLine | ResponseStartLine, headers: HTTPHeaders
    ) -> Awaitable[None] | None:
        assert isinstance(start_line, RequestStartLine)
        question = self._router.question(start_line.method, start_line.path, headers)
        if self._router.is_here(question):
            return self._answer(start_line, headers)
        return self._route(start_line, headers, question)

    def _answer(self, start_line: RequestStartLine, headers: HTTPHeaders) -> Awaitable[None] | None:
        self._delegate = self._start()
        return self._delegate.headers_received(start_line, headers)

    async def _route(
        self, start_line: RequestStartLine, headers: HTTPHeaders, question: Question
    ) -> None:
        router, passed = self._router, None
        head = Head(start_line.method, start_line.path, headers)
        reads_body = question.subject.kind is Kind.BODY
        if not reads_body or not head.is_small:
            if reads_body:
                question = question._replace(subject=Subject(Kind.ANY))
            try:
                owner = await router.decide(question)
            except (Moved, Unavailable) as exc:
                passed = Passed(self._connection, head)
                await passed.refuse(421 if isinstance(exc, Moved) else 503, str(exc))
                return
            if owner is _HERE:
                if (answering := self._answer(start_line, headers)) is not None:
                    await answering
                return

        async def choose(body: bytes) -> Target:
            asked = question
            if reads_body:
                asked = question._replace(subject=subject_of_body(body))
            return router.target(await router.decide(asked))

        passed = Passed(self._connection, head)
        router.tunnels.add(passed, choose, router.header(head.method, head.target))

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        return None if self._delegate is None else self._delegate.data_received(chunk)

    def finish(self) -> None:
        if self._delegate is not None:
            self._delegate.finish()

    def on_connection_close(self) -> None:
        if self._delegate is not None:
            self._delegate.on_connection_close()
