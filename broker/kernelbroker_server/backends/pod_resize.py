"""Changes the limits of a Pod that runs."""

from __future__ import annotations

import asyncio

from .base import LaunchError, SandboxSpec
from .kubernetes_api import KubernetesApi, KubernetesError
from .pod_manifest import CONTAINER, PodSettings, resources

_RESIZE_S = 20.0
_LOOK_S = 0.1


async def resize(api: KubernetesApi, name: str, spec: SandboxSpec, settings: PodSettings) -> None:
    """Give the Pod the limits of the spec, and wait until its container has them. Raises LaunchError."""
    wanted = resources(spec, settings)
    for kind in wanted.values():
        del kind["ephemeral-storage"]  # stays as it is
    patch = {"spec": {"containers": [{"name": CONTAINER, "resources": wanted}]}}
    path = f"{api.path('pods', name)}/resize"
    try:
        async with asyncio.timeout(_RESIZE_S):
            pod = await api.call(
                "PATCH", path, patch, content_type="application/strategic-merge-patch+json"
            )
            generation = pod["metadata"].get("generation", 0)
            while True:
                status = pod.get("status", {})
                for condition in status.get("conditions") or ():
                    if condition["type"] == "PodResizePending":
                        raise LaunchError(
                            f"the node does not change the limits: {condition.get('message')}"
                        )
                    if condition["type"] == "PodResizeInProgress" and condition.get("message"):
                        raise LaunchError(f"the limits cannot be changed: {condition['message']}")
                is_in_progress = any(
                    each["type"] == "PodResizeInProgress" for each in status.get("conditions") or ()
                )
                if not is_in_progress and status.get("observedGeneration", 0) >= generation:
                    return
                await asyncio.sleep(_LOOK_S)
                pod = await api.get("pods", name)
    except TimeoutError as error:
        raise LaunchError(f"the limits were not changed within {_RESIZE_S:g} s") from error
    except KubernetesError as error:
        raise LaunchError(f"the cluster cannot change the limits of a Pod: {error}") from error
