"""Small values of the event store."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """A small value that is kept until a time, such as an idempotency key or a confirmation.

    Attributes:
        kind: what the entry is. Entries of different kinds or tenants may have the same name.
        until: seconds since the epoch.
    """

    kind: str
    tenant: str
    name: str
    value: bytes
    until: float
