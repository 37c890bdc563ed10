"""A network of the engine for gateways that cannot be handed a unix socket, gVisor's for one.

Internal, so that it leads nowhere; without communication between its containers; and without a
resolver that answers. What is left is the host itself, which has an address in it, for else the
broker could not reach a gateway. So where the broker may, it has the host's firewall refuse what a
sandbox begins. Whether all that holds is for a trial to find out: no promise is made here.
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
"""Where a gateway listens, at its container's own address."""
NO_RESOLVER = "192.0.2.1"
"""An address that is nobody's (RFC 5737). Without one, engines before 26 pass on what a sandbox asks
the resolver to the host's own (CVE-2024-29018)."""
_BRIDGE_PREFIX = "kb-"
_FIREWALL_TIMEOUT_S = 10.0
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


class InternalNetwork:
    """The network of one broker: `create` it, then `remove` it.

    Attributes:
        name: as the engine knows it.
        gateway: the host's own address in it, once it is created.
    """

    def __init__(self, engine: Engine, broker_id: str) -> None:
        self.name = f"kernelbroker-{broker_id}"
        self.gateway = ""
        self._engine = engine
        self._bridge = f"{_BRIDGE_PREFIX}{broker_id}"  # an interface's name has at most 15 bytes

    async def create(self, labels: Mapping[str, str]) -> None:
        """Raises EngineError."""
        network = await self._engine.create_network(
            self.name, network_options(self._bridge, labels)
        )
        self.gateway = network["IPAM"]["Config"][0]["Gateway"].partition("/")[0]
        if problem := await self._firewall("-I"):
            log.warning("The firewall was not told to guard the host from sandboxes: %s", problem)

    async def remove(self) -> None:
        """Raises EngineError. Calling it twice, or for a network that is gone, does no harm."""
        await self._engine.remove_network(self.name)
        while os.geteuid() == 0 and await self._firewall("-D") == "":
            pass  # a broker that was killed at the wrong moment may have left two

    async def _firewall(self, verb: str) -> str:
        """Insert or delete the rule; returns what went wrong."""
        try:
            child = Child(["iptables", *firewall_rule(verb, self._bridge)], env={"PATH": _PATH})
        except OSError as error:
            return str(error)
        await asyncio.wait([child.exited], timeout=_FIREWALL_TIMEOUT_S)
        if not child.exited.done():
            child.kill()
        return "" if await child.wait() == 0 else child.output_tail() or "iptables failed"


def network_options(bridge: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """What the engine is asked for; the rest of `POST /networks/create` (API 1.41) is its default."""
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
    """Refuse what comes from the bridge to the host, but for answers to what the host began."""
    match = ["-i", bridge, "-m", "conntrack", "!", "--ctstate", "ESTABLISHED,RELATED"]
    return ["--wait", "5", verb, "INPUT", *match, "-j", "REJECT"]
