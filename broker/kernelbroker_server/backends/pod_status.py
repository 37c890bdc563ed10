"""What the status of a Pod says of its sandbox. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .base import EndCause, Limits, SandboxEnd
from .exit_reason import end_of

Pod = Mapping[str, Any]

_HOPELESS = {
    "ErrImagePull": "its image cannot be pulled",
    "ImagePullBackOff": "its image cannot be pulled",
    "ErrImageNeverPull": "its node does not have the image, and may not pull it",
    "InvalidImageName": "its image has no valid name",
    "CreateContainerConfigError": "its container cannot be configured",
    "CreateContainerError": "its container cannot be made",
    "RunContainerError": "its container cannot be started",
    "CrashLoopBackOff": "its container ends again and again",
}
"""Reasons for which a container waits, and which do not go away in time."""

_DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by a Pod of a higher priority",
    "DeletionByTaintManager": "was deleted because its node is lost or has a new taint",
    "EvictionByEvictionAPI": "was evicted, as when a node is drained",
    "DeletionByPodGC": "was deleted because its node is gone",
    "TerminationByKubelet": "was ended by its node, which lacks a resource or shuts down",
}
"""Reasons of the condition DisruptionTarget."""

_CHARS = 300


def address_of(pod: Pod) -> str | None:
    """Return the address of a Pod whose container runs; None if there is none yet."""
    status = pod.get("status", {})
    running = any("running" in each.get("state", {}) for each in _containers(pod))
    return str(status["podIP"]) if running and status.get("podIP") else None


def unschedulable(pod: Pod) -> str:
    """Return why no node takes the Pod; empty if one has taken it."""
    scheduled = _condition(pod, "PodScheduled")
    return str(scheduled.get("message", "")) if scheduled.get("status") == "False" else ""


def launch_problem(pod: Pod) -> str:
    """Return why the Pod will not start; empty if it may still do so."""
    for container in _containers(pod):
        waiting = container.get("state", {}).get("waiting", {})
        if (why := _HOPELESS.get(str(waiting.get("reason")))) is not None:
            last = container.get("lastState", {}).get("terminated", {})
            details = last.get("message") or waiting.get("message") or ""
            return _joined(f"{why} ({container.get('image') or 'no image'})", details)
    return ""


def end_of_pod(pod: Pod, limits: Limits) -> SandboxEnd | None:
    """Return how a sandbox has ended; None if nothing says that it has."""
    status = pod.get("status", {})
    for container in _containers(pod):
        for state in (container.get("state", {}), container.get("lastState", {})):
            if (ended := state.get("terminated")) is not None:
                if ended.get("reason") == "OOMKilled":
                    return end_of(None, limits, True, "")
                if status.get("reason") or "deletionTimestamp" in pod["metadata"]:
                    continue
                what = f"ended with status {ended.get('exitCode')}"
                return _lost(_joined(what, ended.get("message") or ""))
    disruption = _condition(pod, "DisruptionTarget")
    known = _DISRUPTIONS.get(str(disruption.get("reason")), "was deleted from outside")
    if status.get("phase") == "Failed":
        match status.get("reason"):
            case "DeadlineExceeded":
                return _lost("reached its deadline: kubernetes.deadline")
            case "Evicted":
                return _lost(_joined("was evicted by its node", status.get("message") or ""))
            case reason:
                what = known if disruption else f"failed: {reason or 'for an unknown reason'}"
                return _lost(_joined(what, status.get("message") or ""))
    if "deletionTimestamp" in pod["metadata"]:
        return _lost(_joined(known, disruption.get("message", "")))
    return None


def _lost(what: str) -> SandboxEnd:
    return SandboxEnd(EndCause.SANDBOX_LOST, f"the Pod {what}")


def _joined(what: str, details: str) -> str:
    # The end of a container's output may be from user code, to attack the terminal of the reader.
    line = " ".join(details.split())[-_CHARS:]
    line = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in line)
    return f"{what}: {line}" if line else what


def _containers(pod: Pod) -> list[Mapping[str, Any]]:
    return list(pod.get("status", {}).get("containerStatuses") or ())


def _condition(pod: Pod, kind: str) -> Mapping[str, Any]:
    for condition in pod.get("status", {}).get("conditions") or ():
        if condition.get("type") == kind:
            return dict(condition)
    return {}
