"""Connects to the server of an allowed request.

A name is resolved once, all its addresses are checked, and the connection goes to one of these addresses.
So a name that changes its address after the check (DNS rebinding) gains nothing.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from .addresses import Address, Network, may_connect, parse_address
from .rules import Destination, Reason, Refused

Resolve: TypeAlias = Callable[[str], Awaitable[Sequence[str]]]
"""Returns the addresses of a name, in order of preference. Raises OSError."""

_MAX_ADDRESSES = 4
_THREADS = 8


class SystemResolver:
    """Resolves names as the system does.

    It uses separate threads, because `getaddrinfo` blocks and slow names must not delay other work.
    """

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
    destination: Destination, resolve: Resolve, private: Sequence[Network], timeout: float
) -> list[Address]:
    """Resolve the host, and check every address.

    Raises:
        Refused: it has no address, or one of its addresses may not be connected to.
    """
    try:
        async with asyncio.timeout(timeout):
            texts = await resolve(destination.host)
    except TimeoutError:
        text = f"{destination.host} could not be resolved in time; try again"
        raise Refused(Reason.TIMEOUT, text, destination, 504) from None
    except (OSError, UnicodeError):  # UnicodeError: no resolver accepts the name
        texts = []
    if not texts:
        raise Refused(Reason.NOT_RESOLVED, f"{destination.host} has no address", destination, 502)
    addresses = []
    for text in texts:
        address = parse_address(text)
        if address is None or not may_connect(address, private):
            text = (
                f"{destination.host} resolves to an address that is not public: ask your operator to add "
                "its network to egress.private_networks"
            )
            raise Refused(Reason.PRIVATE_ADDRESS, text, destination)
        addresses.append(address)
    return addresses


async def connect(
    destination: Destination, addresses: Sequence[Address], timeout: float
) -> tuple[Address, asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to the first address that answers.

    Args:
        timeout: seconds for all addresses together.

    Raises:
        Refused: none of them answered.
    """
    try:
        async with asyncio.timeout(timeout):
            for address in addresses[:_MAX_ADDRESSES]:
                try:
                    return address, *await asyncio.open_connection(str(address), destination.port)
                except OSError:
                    continue
    except TimeoutError:
        text = f"{destination.host} does not answer; try again"
        raise Refused(Reason.TIMEOUT, text, destination, 504) from None
    raise Refused(Reason.NOT_CONNECTED, f"{destination.host} cannot be reached", destination, 502)
