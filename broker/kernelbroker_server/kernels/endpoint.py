"""The address of a sandbox's gateway."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A unix socket that only the broker can reach. It needs no token."""

    path: Path


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    """A port on a network that only the broker can enter, and the gateway's token."""

    host: str
    port: int
    token: str


Endpoint: TypeAlias = UnixEndpoint | TcpEndpoint
