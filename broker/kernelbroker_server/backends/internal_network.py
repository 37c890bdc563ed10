"""A network of the engine for gateways that cannot get a unix socket, such as those under gVisor.

The network is internal, so it has no route to the outside. Its containers cannot communicate, and it has no
working resolver. The host has an address in it, since the broker must reach the gateways. If the broker has
the rights, it adds a firewall rule of the host that refuses connections of sandboxes. The check at startup
tests whether all this holds; this module does not.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any

from .child import Child
from .engine import Engine

log = logging.getLogger(__name__)

PORT = 8888
"""The port of a gateway, at the address of its container."""
NO_RESOLVER = "192.0.2.1"
"""An address that is never assigned (RFC 5737). Without it, engines before 26 pass queries of sandboxes to
the host's resolver (CVE-2024-29018)."""
_BRIDGE_PREFIX = "kb-"
_FIREWALL_TIMEOUT_S = 10.0
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class InternalNetwork:
    """The network of one broker. Call `create`, then `remove`.

    Attributes:
        name: its name in the engine.
        gateway: the host's address in it, after `create`.
    """

    def __init__(self, engine: Engine, broker_id: str) -> None:
        self.name = f"kernelbroker-{broker_id}"
        self.gateway = ""
        self._engine = engine
        self._bridge = f"{_BRIDGE_PREFIX}{broker_id}"  # an interface's name has at most 15 bytes

    async def create(self, labels: Mapping[str, str]) -> None:
        """Create the network and the firewall rule. Raises EngineError."""
        network = await self._engine.network(self.name)  # an earlier broker's of the same id
        if network is None:
            options = network_options(self._bridge, labels)
            network = await self._engine.create_network(self.name, options)
        self.gateway = network["IPAM"]["Config"][0]["Gateway"].partition("/")[0]
        if problem := await self._firewall("-I"):
            log.warning("No firewall rule protects the host from sandboxes: %s", problem)

    async def remove(self) -> None:
        """Remove both. Calling it again does no harm. Raises EngineError."""
        await self._engine.remove_network(self.name)
        while os.geteuid() == 0 and await self._firewall("-D") == "":
            pass  # a killed broker may have left two

    async def _firewall(self, verb: str) -> str:
        """Insert or delete the rule. Returns the error message, or an empty text."""
        try:
            child = Child(["iptables", *firewall_rule(verb, self._bridge)], env={"PATH": _PATH})
        except OSError as error:
            return str(error)
        await asyncio.wait([child.exited], timeout=_FIREWALL_TIMEOUT_S)
        if not child.exited.done():
            child.kill()
        return "" if await child.wait() == 0 else child.output_tail() or "iptables failed"


def network_options(bridge: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the request; other options of `POST /networks/create` (API 1.41) have their defaults."""
    return {
        "driver": "bridge",
        "internal": True,
        "enable_ipv6": False,
        "labels": dict(labels),
        "options": {
            "com.docker.network.bridge.name": bridge,
            "com.docker.network.bridge.enable_icc": "false",
        },
    }


def firewall_rule(verb: str, bridge: str) -> list[str]:
    """Return the rule that refuses packets from the bridge to the host, except answers."""
    match = ["-i", bridge, "-m", "conntrack", "!", "--ctstate", "ESTABLISHED,RELATED"]
    return ["--wait", "5", verb, "INPUT", *match, "-j", "REJECT"]
