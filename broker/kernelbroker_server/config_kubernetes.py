"""The section of the backend `kubernetes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from .config_sections import _Section


class KubernetesSettings(_Section):
    namespace: str | None = None
    """The namespace of Pods and Secrets. If not set, that of the broker's own Pod, or of the context."""
    kubeconfig: Path | None = None
    """A kubeconfig. If not set, the service account of the broker's Pod, KUBECONFIG, or ~/.kube/config."""
    context: str | None = None
    """The context of the kubeconfig; the current one if not set."""
    image: str = "kernelbroker-kernel"
    """The image of sandboxes whose template names none."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    """When nodes pull the image; the cluster's default if not set."""
    pull_secrets: tuple[str, ...] = ()
    """Secrets with credentials of registries."""
    runtime_class: str | None = None
    """The RuntimeClass of Pods whose template has no `runtime`, such as gvisor or kata; the nodes' default
    runtime if not set."""
    node_selector: dict[str, str] = {}
    """Labels of the nodes that take sandboxes."""
    tolerations: tuple[dict[str, Any], ...] = ()
    """Tolerations of the Pods, as the API has them."""
    topology_spread: tuple[dict[str, Any], ...] = ()
    """Topology spread constraints, as the API has them. Without a labelSelector all sandboxes count."""
    priority_class: str | None = None
    """The PriorityClass of the Pods."""
    labels: dict[str, str] = {}
    """Further labels of the Pods."""
    annotations: dict[str, str] = {}
    """Further annotations of the Pods."""
    cpu_request: float = Field(default=0.1, ge=0, le=1)
    """The share of a sandbox's `cpus` that its node reserves. The limit is all of them."""
    memory_request: float = Field(default=0.25, ge=0, le=1)
    """The share of a sandbox's `memory` that its node reserves. The limit is all of it."""
    deadline: float = Field(default=172800, ge=60)
    """A Pod is ended this long after its start, in use or not."""
    start_timeout: float = Field(default=60, gt=0)
    """How long a Pod may take until it runs."""
    schedule_timeout: float = Field(default=15, gt=0)
    """How long a Pod that no node can take waits. Allow minutes if nodes are added on demand."""
    require_network_policies: bool = True
    """Refuse templates with `network = "none"` in a cluster that does not enforce NetworkPolicies: code
    would reach the cluster's network."""
    claims: dict[str, str] = {}
    """PersistentVolumeClaims by the directory whose files they have: `sandbox.shared_data`,
    `packages.wheels`, and those of projects. Pods cannot see directories of the broker."""
    volume_images: dict[str, str] = {}
    """Images with the files of `sandbox.shared_data` or `packages.wheels`, by directory, in place of
    claims."""
    patch: dict[str, Any] = {}
    """A JSON merge patch that is applied to each Pod at last, for what has no setting."""
    data_dir: Path | None = None
    """The directory of workspaces while no Pod has them; below /var/tmp if not set."""
