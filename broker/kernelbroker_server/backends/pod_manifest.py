"""The manifests of a Pod and its Secret, as the API expects them. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernelbroker_kernel.contract import (
    ALONE_S,
    HANDOVER,
    POD_ENTRY_MODULE,
    PROJECT,
    WORKSPACE,
    WORKSPACE_PATHS,
)

from .base import LaunchError, Network, SandboxSpec
from .pod_certificate import PodSecret
from .sandbox_layout import (
    HOME,
    TMP,
    UID,
    WHEELS,
    environment,
    gateway_argv,
    max_file_bytes,
)

LABEL_BROKER = "kernelbroker.io/broker"
LABEL_DATA = "kernelbroker.io/data"
"""The id of the `data_dir` with the locks of the brokers that may remove each other's Pods."""
LABEL_SANDBOX = "kernelbroker.io/sandbox"
LABEL_NETWORK = "kernelbroker.io/network"
"""For NetworkPolicies: none, allowlist or open."""
LABEL_TEMPLATE = "kernelbroker.io/template"
APP_LABELS = {
    "app.kubernetes.io/name": "kernelbroker-sandbox",
    "app.kubernetes.io/managed-by": "kernelbroker",
}
CONTAINER = "sandbox"
PORT = 8888
SECRET = Path("/run/secrets/kernelbroker")
_PYTHON = "python"
_SLACK = 1.25
"""The volume of the workspace is larger than the workspace may be, so that the sessions' own limit comes
first: a Pod that exceeds its volume is evicted."""
_SLACK_BYTES = 64 * 1024**2
_GRACE_S = 5


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all Pods of a broker have. `config_kubernetes.KubernetesSettings` describes it."""

    image: str
    image_pull_policy: str | None = None
    pull_secrets: tuple[str, ...] = ()
    runtime_class: str | None = None
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Any], ...] = ()
    topology_spread: tuple[Mapping[str, Any], ...] = ()
    priority_class: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    cpu_request: float = 0.1
    memory_request: float = 0.25
    deadline: float = 172800.0
    claims: Mapping[str, str] = field(default_factory=dict)
    volume_images: Mapping[str, str] = field(default_factory=dict)
    patch: Mapping[str, Any] = field(default_factory=dict)


def pod_manifest(
    name: str,
    spec: SandboxSpec,
    settings: PodSettings,
    labels: Mapping[str, str],
    command: Sequence[str],
) -> dict[str, Any]:
    """Return the whole Pod. The operator's merge patch is applied last.

    Args:
        name: of the Pod, and of its Secret.
        labels: by which brokers find their Pods.
        command: the arguments of Python, before the gateway's options.

    Raises:
        LaunchError: the spec needs a directory for which the settings name no volume.
    """
    volumes, mounts = _volumes(name, spec, settings)
    manifest = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {
                **settings.labels,
                **APP_LABELS,
                **labels,
                LABEL_TEMPLATE: spec.template,
                LABEL_NETWORK: spec.network.value,
            },
            "annotations": {
                # Moving a sandbox would end its session.
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                **settings.annotations,
            },
        },
        "spec": {
            "containers": [_container(spec, settings, command, mounts)],
            "volumes": volumes,
            # A container that is ended for its memory is started again, to serve its files.
            "restartPolicy": "OnFailure",
            "activeDeadlineSeconds": int(settings.deadline),
            "terminationGracePeriodSeconds": _GRACE_S,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "hostname": "sandbox",
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": UID,
                "runAsGroup": UID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **_dns(spec),
            **_placement(settings),
        },
    }
    return dict(merged(manifest, settings.patch))


def secret_manifest(
    name: str, uid: str, secret: PodSecret, labels: Mapping[str, str]
) -> dict[str, Any]:
    """Return the Secret that ends with the Pod of this name and uid."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "labels": dict(labels), "ownerReferences": [owner]},
        "type": "Opaque",
        "immutable": True,
        "data": secret.data(),
    }


def resources(spec: SandboxSpec, settings: PodSettings) -> dict[str, Any]:
    """Return requests and limits of the container."""
    limits = spec.limits
    storage = str(_volume_bytes(spec) + _SLACK_BYTES)
    return {
        "limits": {
            "cpu": f"{max(1, math.ceil(limits.cpus * 1000))}m",
            "memory": str(limits.memory),
            "ephemeral-storage": storage,
        },
        "requests": {
            "cpu": f"{max(1, math.ceil(limits.cpus * settings.cpu_request * 1000))}m",
            "memory": str(int(limits.memory * settings.memory_request)),
            "ephemeral-storage": str(_SLACK_BYTES),
        },
    }


def merged(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, Mapping) else {}
    for key, new in patch.items():
        if new is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), new)
    return result


def _container(
    spec: SandboxSpec, settings: PodSettings, command: Sequence[str], mounts: list[dict[str, Any]]
) -> dict[str, Any]:
    listen: tuple[str, ...] = ("--handover", HANDOVER)
    if spec.orphan_grace:
        listen += ("--alone", f"{spec.orphan_grace:g}")
    options = {
        "--port": PORT,
        "--secret": SECRET,
        "--open-files": spec.limits.open_files,
        "--file-size": max_file_bytes(spec.limits),
        "--alone": f"{max(ALONE_S, spec.orphan_grace):g}",
    }
    entry = [_PYTHON, "-P", "-m", POD_ENTRY_MODULE]
    entry += [str(word) for option in options.items() for word in option]
    variables = environment(spec, home=HOME, tmp=TMP, workspace=Path(WORKSPACE))
    return {
        "name": CONTAINER,
        "image": spec.image or settings.image,
        **_given(imagePullPolicy=settings.image_pull_policy),
        "command": [*map(_literal, [*entry, "--", *gateway_argv(_PYTHON, command, listen, spec)])],
        "env": [{"name": name, "value": _literal(value)} for name, value in variables.items()],
        "workingDir": WORKSPACE,
        "ports": [{"containerPort": PORT, "protocol": "TCP"}],
        "resources": resources(spec, settings),
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "privileged": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
        },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }


def _literal(text: str) -> str:
    """Return a text in which the kubelet replaces no `$(NAME)`."""
    return text.replace("$(", "$$(")


def _volumes(
    name: str, spec: SandboxSpec, settings: PodSettings
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    volumes: list[dict[str, Any]] = [
        {"name": "secret", "secret": {"secretName": name, "defaultMode": 0o444}},
        {"name": "data", "emptyDir": {"sizeLimit": str(_volume_bytes(spec))}},
    ]
    mounts: list[dict[str, Any]] = [
        {"name": "secret", "mountPath": str(SECRET), "readOnly": True},
        *({"name": "data", "mountPath": path} for path in WORKSPACE_PATHS),
    ]
    for volume, path in (("tmp", TMP), ("home", HOME), ("shm", "/dev/shm")):
        size = str(spec.limits.tmp_size)
        volumes.append({"name": volume, "emptyDir": {"medium": "Memory", "sizeLimit": size}})
        mounts.append({"name": volume, "mountPath": str(path)})
    wanted = {
        "shared": (spec.shared_data, [f"{path}/shared" for path in WORKSPACE_PATHS]),
        "wheels": (spec.wheels, [str(WHEELS)]),
    }
    for volume, (directory, paths) in wanted.items():
        if directory is None:
            continue
        if claim := settings.claims.get(str(directory)):
            source = {"persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        elif image := settings.volume_images.get(str(directory)):
            source = {"image": {"reference": image}}
        else:
            raise LaunchError(
                f"Pods cannot see the broker's directory {directory}: name a claim or an image with its "
                "files in kubernetes.claims or kubernetes.volume_images"
            )
        volumes.append({"name": volume, **source})
        mounts += [{"name": volume, "mountPath": path, "readOnly": True} for path in paths]
    if (project := spec.project) is not None:
        claim, sub_path = _claim_of(project.path, settings)
        volumes.append({"name": "project", "persistentVolumeClaim": {"claimName": claim}})
        for path in WORKSPACE_PATHS:
            mount = {
                "name": "project",
                "mountPath": f"{path}/{PROJECT}",
                "readOnly": project.read_only,
            }
            mounts.append(mount | _given(subPath=sub_path or None))
    return volumes, mounts


def _claim_of(path: Path, settings: PodSettings) -> tuple[str, str]:
    """Return the claim with a directory of a project, and the path in it. Raises LaunchError."""
    for directory, claim in settings.claims.items():
        if path.is_relative_to(directory):
            return claim, "" if str(path) == directory else str(path.relative_to(directory))
    raise LaunchError(
        f"Pods cannot see the project {path}: name the claim with its files in kubernetes.claims"
    )


def _dns(spec: SandboxSpec) -> dict[str, Any]:
    if spec.network is Network.OPEN:
        return {"dnsPolicy": "Default"}
    # Nothing answers there, so that no name is ever looked up.
    return {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}


def _placement(settings: PodSettings) -> dict[str, Any]:
    return _given(
        runtimeClassName=settings.runtime_class,
        nodeSelector=dict(settings.node_selector) or None,
        tolerations=[dict(each) for each in settings.tolerations] or None,
        priorityClassName=settings.priority_class,
        imagePullSecrets=[{"name": name} for name in settings.pull_secrets] or None,
        topologySpreadConstraints=[
            {"labelSelector": {"matchLabels": APP_LABELS}, **each}
            for each in settings.topology_spread
        ]
        or None,
    )


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _volume_bytes(spec: SandboxSpec) -> int:
    return int(spec.limits.workspace_size * _SLACK) + _SLACK_BYTES
