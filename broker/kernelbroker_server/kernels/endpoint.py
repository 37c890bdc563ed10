"""The address of a sandbox's gateway."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A unix socket that only the broker can reach. It needs no token."""

    path: Path


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """A port on a network, and the gateway's token.

    Attributes:
        tls: trusts nothing but the gateway's own certificate; None on a network that only the broker can
            enter.
    """

    host: str
    port: int
    token: str
    tls: ssl.SSLContext | None = field(default=None, compare=False)


Endpoint: TypeAlias = UnixEndpoint | TcpEndpoint
