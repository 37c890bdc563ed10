"""Sends signed messages to webhooks that the operator allows.

The host of a URL is resolved once, all its addresses are checked, and the connection goes to one of these,
so that a name that changes its address after the check (DNS rebinding) gains nothing. Redirects are not
followed. The answer's body is not read.
"""

from __future__ import annotations

import asyncio
import enum
import ipaddress
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from kernelbroker.protocol.errors import BadRequest
from tornado.httpclient import HTTPError, HTTPRequest
from tornado.netutil import Resolver
from tornado.simple_httpclient import SimpleAsyncHTTPClient

from ..egress.addresses import Address, Network
from ..egress.host_names import AllowList, InvalidHostName, normalize_host
from ..egress.rules import Destination, Refused
from ..egress.upstream import Resolve, SystemResolver, checked_addresses
from .webhook_message import signed_headers

_TIMEOUT_S = 15.0
"""For one attempt, from the resolution of the name to the answer."""
_MAX_ANSWER = 1024**2
_GONE = 410


class Outcome(enum.Enum):
    DELIVERED = "delivered"
    FAILED = "failed"
    """It may succeed later."""
    UNWANTED = "unwanted"
    """The receiver does not want it any more (HTTP 410), or the settings forbid it now."""


@dataclass(frozen=True, slots=True)
class WebhookPolicy:
    """Which webhooks there may be.

    Attributes:
        hosts: allowed names.
        key: signs the messages.
        private: private networks that the hosts may be in.
        allow_http: also URLs without TLS.
    """

    hosts: AllowList
    key: bytes
    private: Sequence[Network] = ()
    allow_http: bool = False


@dataclass(slots=True)
class WebhookSender:
    """
    Args:
        policy: None if the operator has allowed no host.
        clock: seconds since the epoch.
    """

    policy: WebhookPolicy | None = None
    resolve: Resolve = field(default_factory=SystemResolver)
    clock: Callable[[], float] = time.time
    ca_certs: str | None = None

    def check(self, url: str) -> Destination:
        """Check a URL by the operator's rules. Returns where it leads.

        Raises:
            BadRequest: with what is wrong.
        """
        if self.policy is None:
            raise BadRequest(
                "this broker calls no webhooks: leave out callback_url, or ask its operator to set "
                "webhooks.allowed_hosts"
            )
        try:
            parts = urlsplit(url)
            port = parts.port or (443 if parts.scheme == "https" else 80)
            host = normalize_host(parts.hostname or "")
        except (ValueError, InvalidHostName) as exc:
            raise BadRequest(f"callback_url is not a URL with the name of a host: {exc}") from exc
        if parts.scheme != "https" and not (parts.scheme == "http" and self.policy.allow_http):
            raise BadRequest("callback_url must begin with https://")
        if parts.username is not None or parts.password is not None or parts.fragment:
            raise BadRequest("callback_url must have no password and no fragment")
        if not url.isascii() or not url.isprintable() or " " in url:
            raise BadRequest("callback_url must be printable ASCII: encode other characters")
        if host not in self.policy.hosts:
            raise BadRequest(
                f"callback_url: {host} is not allowed; ask the broker's operator to add it to "
                "webhooks.allowed_hosts"
            )
        return Destination("POST", host, port)

    async def send(self, url: str, message_id: str, body: bytes) -> tuple[Outcome, str]:
        """Send a message once.

        Returns:
            The outcome, and a reason for the log, which does not have the URL's path.
        """
        try:
            destination = self.check(url)
        except BadRequest as exc:
            return Outcome.UNWANTED, exc.message
        assert self.policy is not None, "it was checked"
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                addresses = await checked_addresses(
                    destination, self.resolve, self.policy.private, _TIMEOUT_S
                )
                status = await self._post(url, addresses, message_id, body)
        except Refused as exc:
            return Outcome.FAILED, str(exc)
        except TimeoutError:
            return Outcome.FAILED, f"{destination.host} did not answer in {_TIMEOUT_S:g} s"
        except (OSError, HTTPError) as exc:
            return Outcome.FAILED, f"{destination.host}: {type(exc).__name__}"
        if 200 <= status < 300:
            return Outcome.DELIVERED, ""
        reason = f"{destination.host} answered {status}"
        return Outcome.UNWANTED if status == _GONE else Outcome.FAILED, reason

    async def _post(
        self, url: str, addresses: Sequence[Address], message_id: str, body: bytes
    ) -> int:
        """Returns the status of the answer."""
        assert self.policy is not None, "it was checked"
        headers = signed_headers(self.policy.key, message_id, self.clock(), body)
        client = SimpleAsyncHTTPClient(
            force_instance=True, resolver=_Pinned(addresses), max_body_size=_MAX_ANSWER
        )
        try:
            response = await client.fetch(
                HTTPRequest(
                    url,
                    method="POST",
                    headers=headers
                    | {"Content-Type": "application/json", "User-Agent": "kernelbroker"},
                    body=body,
                    follow_redirects=False,
                    decompress_response=False,
                    ca_certs=self.ca_certs,
                    connect_timeout=_TIMEOUT_S,
                    request_timeout=_TIMEOUT_S,
                ),
                raise_error=False,
            )
        finally:
            client.close()
        if isinstance(response.error, HTTPError) and response.code != 599:
            return response.code
        response.rethrow()
        return response.code


class _Pinned(Resolver):
    """Returns the addresses that were checked, for any name."""

    def initialize(self, addresses: Sequence[Address]) -> None:
        self._addresses = addresses

    async def resolve(
        self,
        host: str,  # noqa: ARG002
        port: int,
        family: socket.AddressFamily = socket.AF_UNSPEC,  # noqa: ARG002
    ) -> list[tuple[int, Any]]:
        return [
            (
                socket.AF_INET6 if isinstance(each, ipaddress.IPv6Address) else socket.AF_INET,
                (str(each), port),
            )
            for each in self._addresses
        ]
