"""What all Pods of one broker share."""

from __future__ import annotations

from dataclasses import dataclass

from . import sandbox_record
from .base import Confirm, SandboxSpec, owns_all
from .directories import Directories
from .kubernetes_api import KubernetesApi
from .pod_manifest import LABEL_BROKER, LABEL_DATA, PodSettings


@dataclass(frozen=True, slots=True)
class PodContext:
    """What all Pods of one broker share.

    Attributes:
        data_id: of the `data_dir`.
        start_timeout, schedule_timeout: seconds until a Pod must run, and until it must have a node.
        unreachable_after: seconds without a sign of life after which a Pod counts as lost.
        confirm: see `Backend.confirm`.
    """

    api: KubernetesApi
    directories: Directories
    settings: PodSettings
    data_id: str
    start_timeout: float = 60.0
    schedule_timeout: float = 15.0
    unreachable_after: float = 30.0
    confirm: Confirm = owns_all

    @property
    def labels(self) -> dict[str, str]:
        """By which brokers find what this broker makes."""
        return {LABEL_BROKER: self.directories.broker_id, LABEL_DATA: self.data_id}

    def pod_name(self, sandbox_id: str) -> str:
        return f"kernelbroker-{self.directories.broker_id}-{sandbox_id.replace('_', '-')}"

    def digest(self, spec: SandboxSpec) -> str:
        """The same for all sandboxes that one broker may adopt from the other."""
        return sandbox_record.digest(spec, "kubernetes", repr(self.settings))
