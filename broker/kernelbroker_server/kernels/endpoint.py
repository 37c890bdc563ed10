"""The address of a sandbox's gateway."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from kernelbroker_kernel.contract import EPOCH_HEADER


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    """A unix socket that only the broker can reach. It needs no token."""

    path: Path
    epoch: int = 0

    @property
    def headers(self) -> Mapping[str, str]:
        """What each request must have."""
        return _epoch(self.epoch)


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
    epoch: int = 0
    tls: ssl.SSLContext | None = field(default=None, compare=False)

    @property
    def headers(self) -> Mapping[str, str]:
        """What each request must have."""
        return {"Authorization": f"token {self.token}", **_epoch(self.epoch)}


def _epoch(epoch: int) -> Mapping[str, str]:
    return {EPOCH_HEADER: str(epoch)} if epoch else {}


Endpoint: TypeAlias = UnixEndpoint | TcpEndpoint
