"""The section of the configuration file for several brokers on one store."""

from __future__ import annotations

from pydantic import Field, SecretStr

from .config_sections import _Section


class ClusterSettings(_Section):
    """Several brokers on one store in PostgreSQL. See docs/several-brokers.md."""

    secret: SecretStr | None = Field(default=None, min_length=16)
    """What the brokers authenticate each other with; the same for all of them. It also makes their keys, so
    that access tokens of one are valid at all. Needed with `store`."""
    url: str | None = Field(default=None, pattern="^https?://[^/]+$")
    """Where the other brokers reach this one. If not set, the address it listens on."""
    lease: float = Field(default=10, ge=1)
    """Seconds. A broker that has not renewed its lease for so long has lost its sessions to another one,
    which goes on with them. It should be less than half of `sandbox.orphan_grace`."""
