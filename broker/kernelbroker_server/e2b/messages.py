"""The bodies that E2B's clients send. Unknown fields are ignored, since later clients may send more."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

DEFAULT_TIMEOUT_S = 300
MAX_FORKS = 20

Seconds = Annotated[int, msgspec.Meta(ge=0)]


class AutoResume(msgspec.Struct):
    enabled: bool = False


class NewSandbox(msgspec.Struct, kw_only=True):
    """A sandbox to create.

    Attributes:
        auto_pause: it sleeps at the end of its timeout.
        network: what it asks of the network; see `network.check`.
    """

    template_id: str = msgspec.field(name="templateID")
    timeout: Seconds | None = None
    auto_pause: bool = msgspec.field(name="autoPause", default=False)
    metadata: dict[str, str] = {}
    env_vars: dict[str, str] = msgspec.field(name="envVars", default_factory=dict)
    allow_internet_access: bool | None = None
    network: dict[str, Any] | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[Any] = msgspec.field(name="volumeMounts", default_factory=list)


class Timeout(msgspec.Struct, kw_only=True):
    timeout: Seconds | None = None


class Refresh(msgspec.Struct, kw_only=True):
    duration: Seconds | None = None


class Fork(msgspec.Struct, kw_only=True):
    timeout: Seconds | None = None
    count: Annotated[int, msgspec.Meta(ge=1, le=MAX_FORKS)] = 1


class NewSnapshot(msgspec.Struct, kw_only=True):
    name: str | None = None


class NetworkUpdate(msgspec.Struct, kw_only=True):
    allow_internet_access: bool | None = None
    allow_out: list[Any] = msgspec.field(name="allowOut", default_factory=list)
    deny_out: list[Any] = msgspec.field(name="denyOut", default_factory=list)
    rules: dict[str, Any] = {}
