"""Removes the containers and directories of brokers that have died."""

from __future__ import annotations

import asyncio
import logging

from .base import Rescue
from .container_options import LABEL_BROKER, LABEL_DATA
from .docker_context import BackendContext
from .internal_network import InternalNetwork

log = logging.getLogger(__name__)


async def reap(context: BackendContext, rescue: Rescue | None) -> float:
    """Remove the containers of dead brokers, and then their directories.

    The lock on a broker's directory shows whether the broker is dead. A directory stays as long as
    there are containers of its broker.

    Returns:
        the seconds after which to call it again, for containers that may still be adopted.
    """
    data_dir = context.directories.data.parent
    postponed: list[float] = []
    dead = {
        directories.broker_id: directories
        for directories in context.directories.of_the_dead(postponed)
    }
    for container in await context.engine.with_label(f"{LABEL_DATA}={data_dir}"):
        broker_id = container["Labels"][LABEL_BROKER]
        if broker_id in dead or not (data_dir / broker_id).exists():
            log.info("Removing a container that the broker %s left behind", broker_id)
            await context.engine.remove(container["Names"][0].removeprefix("/"))
    for network in await context.engine.networks_with_label(f"{LABEL_DATA}={data_dir}"):
        broker_id = network["Labels"][LABEL_BROKER]
        if broker_id in dead or not (data_dir / broker_id).exists():
            await context.engine.remove_network(network["Name"])
            await InternalNetwork(context.engine, broker_id).remove()  # its firewall rule
    for directories in dead.values():
        if rescue is None or await asyncio.to_thread(rescue, directories.data):
            await directories.remove()
    return max(postponed, default=0.0)
