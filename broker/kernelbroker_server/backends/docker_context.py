"""What the containers of one broker share."""

from __future__ import annotations

from dataclasses import dataclass

from ..egress.proxy import Proxy
from .base import Confirm, owns_all
from .container_options import LABEL_BROKER, LABEL_DATA
from .directories import Directories
from .engine import Engine
from .open_network import OpenNetwork
from .usage import UsageMeter


@dataclass(frozen=True, slots=True)
class BackendContext:
    """The objects that all containers of one broker share.

    Attributes:
        owner: the user of the code, in the container and on the host.
    """

    engine: Engine
    directories: Directories
    image: str
    owner: int
    proxy: Proxy
    open_network: OpenNetwork
    meter: UsageMeter
    epoch: int = 0
    """Of the broker that has taken the directories over; see `Backend.take`."""
    confirm: Confirm = owns_all
    """Waited for before a container is removed."""

    @property
    def labels(self) -> dict[str, str]:
        """The labels of everything that this broker creates, by which other brokers find it."""
        return {
            LABEL_BROKER: self.directories.broker_id,
            LABEL_DATA: str(self.directories.data.parent),
        }

    def container_name(self, sandbox_id: str) -> str:
        return f"kernelbroker-{self.directories.broker_id}-{sandbox_id}"
