"""What E2B's users ask of the network. The template decides; nobody gets less protection than asked for."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kernelbroker.protocol.errors import BadRequest

from ..backends.base import Network, SandboxSpec

_IGNORED = frozenset({"allowPublicTraffic", "maskRequestHost", "httpsPorts"})
"""They concern the ports of the sandbox: all of them need an access token here."""


def check(
    spec: SandboxSpec, allow_internet_access: bool | None, asked: Mapping[str, Any] | None
) -> None:
    """Check that the template's network is what a client asks for. Raises BadRequest.

    A client that asks for the internet gets what the template has: E2B's clients do so by default.
    """
    if spec.network is Network.NONE:
        return  # nothing can be reached, whatever is allowed or forbidden
    wanted = {name for name, value in (asked or {}).items() if value} - _IGNORED
    if allow_internet_access is False or wanted:
        what = "allow_internet_access=False" if allow_internet_access is False else "network"
        raise BadRequest(
            f"{what}: the template '{spec.template}' has the network {spec.network}, which a client cannot "
            "change. Use a template with another network (the setting templates.NAME.network)"
        )
