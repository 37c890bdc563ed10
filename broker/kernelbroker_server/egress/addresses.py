"""Which addresses the proxy may connect to. No I/O.

Python's `is_global` differs between versions, and treats addresses of tunnels and translators as public.
So the refused networks are listed here in full. Sources: the IANA registries of special-purpose addresses
for IPv4 and IPv6; RFC 6052 (NAT64).
"""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import (
    IPv4Address,
    IPv4Network,
    IPv6Address,
    IPv6Network,
    ip_address,
)
from typing import TypeAlias

Address: TypeAlias = IPv4Address | IPv6Address
Network: TypeAlias = IPv4Network | IPv6Network

_REFUSED_4 = tuple(
    map(
        IPv4Network,
        (
            "0.0.0.0/8",
            "10.0.0.0/8",
            "100.64.0.0/10",  # carrier-grade NAT
            "127.0.0.0/8",
            "169.254.0.0/16",  # link-local, metadata services of clouds
            "172.16.0.0/12",
            "192.0.0.0/24",
            "192.0.2.0/24",
            "192.31.196.0/24",
            "192.52.193.0/24",
            "192.88.99.0/24",  # 6to4 relays
            "192.168.0.0/16",
            "192.175.48.0/24",
            "198.18.0.0/15",
            "198.51.100.0/24",
            "203.0.113.0/24",
            "224.0.0.0/3",  # multicast, reserved, broadcast
        ),
    )
)
_GLOBAL_6 = IPv6Network("2000::/3")
_REFUSED_6 = tuple(
    map(
        IPv6Network,
        (
            "2001::/23",  # Teredo, ORCHID and other protocols
            "2001:db8::/32",
            "2002::/16",  # 6to4: routed to the IPv4 address inside
            "2620:4f:8000::/48",
            "3fff::/20",
        ),
    )
)
_NAT64 = IPv6Network("64:ff9b::/96")


def parse_address(text: str) -> Address | None:
    """Parse an address as a resolver returns it.

    An IPv4-mapped IPv6 address becomes the IPv4 address, which is where connections to it go.

    Returns:
        None for anything that is not an address, and for an address with a zone (`fe80::1%eth0`).
    """
    try:
        address = ip_address(text)
    except ValueError:
        return None
    if isinstance(address, IPv4Address):
        return address
    if address.scope_id is not None:
        return None
    return address.ipv4_mapped or address


def may_connect(address: Address, private: Sequence[Network]) -> bool:
    """Whether an address is on the public Internet, or in a private network that the operator permits."""
    if any(address in network for network in private):
        return True
    if isinstance(address, IPv6Address):
        if address in _NAT64:
            return may_connect(IPv4Address(int(address) & 0xFFFFFFFF), private)
        return address in _GLOBAL_6 and not any(address in network for network in _REFUSED_6)
    return not any(address in network for network in _REFUSED_4)
