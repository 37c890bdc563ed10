"""From a name to a connection: resolved once, every address checked, and connected to one of these.

That what is connected to is what was checked defeats names that change their address in between.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from .addresses import Address, Network, may_connect, parse_address
from .rules import Asked, Reason, Refused

Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""The addresses of a name, in order of preference; raises OSError."""

_MAX_ADDRESSES = 4
_THREADS = 8


class SystemResolver:
    """The system's, in threads of its own: it blocks, and others must not wait for slow names."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolver")

    async def __call__(self, name: str) -> Sequence[str]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, _resolve, name)
        return list(dict.fromkeys(found))


def _resolve(name: str) -> list[str]:
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


async def checked_addresses(
    asked: Asked, resolve: Resolve, private: Sequence[Network], timeout: float
) -> list[Address]:
    """Where the host is. Raises Refused if there, or also, is where nobody may connect to."""
    try:
        async with asyncio.timeout(timeout):
            texts = await resolve(asked.host)
    except TimeoutError:
        text = f"{asked.host} was not found in time; try again"
        raise Refused(Reason.TIMEOUT, text, asked, 504) from None
    except (OSError, UnicodeError):  # the latter for what no resolver takes
        texts = []
    if not texts:
        raise Refused(Reason.NOT_RESOLVED, f"{asked.host} has no address", asked, 502)
    addresses = []
    for text in texts:
        address = parse_address(text)
        if address is None or not may_connect(address, private):
            text = (
                f"{asked.host} is at an address that is not public: ask your operator to add its "
                "network to egress.private_networks"
            )
            raise Refused(Reason.PRIVATE_ADDRESS, text, asked)
        addresses.append(address)
    return addresses


async def connect(
    asked: Asked, addresses: Sequence[Address], timeout: float
) -> tuple[Address, asyncio.StreamReader, asyncio.StreamWriter]:
    """To the first that answers, within `timeout` seconds over all. Raises Refused."""
    try:
        async with asyncio.timeout(timeout):
            for address in addresses[:_MAX_ADDRESSES]:
                try:
                    return address, *await asyncio.open_connection(str(address), asked.port)
                except OSError:
                    continue
    except TimeoutError:
        text = f"{asked.host} does not answer; try again"
        raise Refused(Reason.TIMEOUT, text, asked, 504) from None
    raise Refused(Reason.NOT_CONNECTED, f"{asked.host} cannot be reached", asked, 502)
