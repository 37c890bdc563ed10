"""Builds the engine's request for a sandbox's container. No I/O.

The result is the body of `POST /containers/create` (Docker Engine API 1.41, which Podman supports too).
Options that are missing here have the engine's defaults on purpose: its seccomp profile, the masked parts
of /proc and /sys, and separate namespaces.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelbroker_kernel.contract import (
    ALONE_S,
    PROJECT,
    TOKEN_VARIABLE,
    WORKSPACE,
    WORKSPACE_PATHS,
)

from .base import CPU_PERIOD_US, LaunchError, Limits, SandboxSpec
from .host_project import HostProject
from .internal_network import NO_RESOLVER, PORT
from .sandbox_layout import (
    EGRESS_SOCKET,
    HOME,
    TMP,
    UID,
    WHEELS,
    environment,
    gateway_argv,
    max_file_bytes,
)

LABEL_BROKER = "kernelbroker.broker"
LABEL_DATA = "kernelbroker.data"
"""The value is `data_dir`, which has the locks of the brokers that share this engine."""
LABEL_SANDBOX = "kernelbroker.sandbox"
LABEL_TEMPLATE = "kernelbroker.template"

HANDOVER = Path("/run/kernelbroker.handover")
"""A directory, so that the next broker's socket is seen inside; it cannot be written to."""
HANDOVER_SOCKET = "socket"
PYTHON = "python"
"""Found by the image's PATH, so that an image can have any Python."""

_GVISOR_THREADS = 60
"""Threads of the host that gVisor needs before any process runs in it."""
SEALED = {
    "/run": "rw,noexec,nosuid,nodev,mode=755,size=64k",
    "/run/lock": "ro,size=4k",
    "/var/tmp": "ro,size=4k",
}
"""Podman would mount a writable tmpfs without a size limit here."""


@dataclass(frozen=True, slots=True)
class SocketTransport:
    """The gateway gets its connections over another unix socket, in the directory `handover`."""

    handover: Path


@dataclass(frozen=True, slots=True)
class NetworkTransport:
    """The gateway listens on a port in the network of this name, and requires the token."""

    network: str
    token: str


@dataclass(frozen=True, slots=True)
class ContainerPlacement:
    """The resources of one container on the host.

    Attributes:
        name: of the container.
        transport: how the broker reaches the gateway.
        workspace: the directory that is /data in the container.
        owner: the user of the code in the container, inside and on the host.
        labels: brokers find their containers by these.
        egress_socket: the proxy's socket, if the sandbox has an allow list.
        network: a network of the engine, if the sandbox has an open network.
        gvisor: whether it runs under gVisor.
    """

    name: str
    transport: SocketTransport | NetworkTransport
    workspace: Path
    owner: int
    labels: dict[str, str]
    egress_socket: Path | None = None
    network: str | None = None
    gvisor: bool = False


def container_options(
    spec: SandboxSpec,
    placement: ContainerPlacement,
    *,
    image: str,
    runtime: str,
    command: Sequence[str],
) -> dict[str, Any]:
    """Return the whole request.

    Args:
        image: the image, if the spec has none.
        command: the arguments of Python, before the gateway's options.
    """
    listen: tuple[str, ...]
    variables = environment(spec, home=HOME, tmp=TMP, workspace=Path(WORKSPACE))
    match placement.transport:
        case SocketTransport():
            listen = ("--handover", str(HANDOVER / HANDOVER_SOCKET))
            alone = spec.orphan_grace
            network: dict[str, Any] = {"NetworkMode": placement.network or "none"}
        case NetworkTransport(network=name, token=token):
            listen = ("--tcp", f"0.0.0.0:{PORT}")
            alone = max(ALONE_S, spec.orphan_grace)
            network = {"NetworkMode": name, "Dns": [NO_RESOLVER]}
            variables[TOKEN_VARIABLE] = token
    if spec.orphan_grace:
        listen += ("--alone", f"{alone:g}")
    return {
        "Image": spec.image or image,
        "Entrypoint": gateway_argv(PYTHON, command, listen, spec),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": f"{placement.owner}:{placement.owner}",
        "WorkingDir": WORKSPACE,
        "Hostname": "sandbox",
        "Labels": placement.labels | {LABEL_TEMPLATE: spec.template},
        "NetworkDisabled": network["NetworkMode"] == "none",
        "Healthcheck": {"Test": ["NONE"]},  # the broker checks its sandboxes itself
        "HostConfig": {
            "Runtime": runtime,
            **network,
            "IpcMode": "private",
            "Init": True,
            "Privileged": False,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "RestartPolicy": {"Name": "no"},
            # The gateway's output helps to explain a failure. It is hostile.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
            **_files(spec, placement),
            **_limits(spec.limits, placement.gvisor),
        },
    }


def _files(spec: SandboxSpec, placement: ContainerPlacement) -> dict[str, Any]:
    size = spec.limits.tmp_size
    mounts = [_bind(placement.workspace, path) for path in WORKSPACE_PATHS]
    if isinstance(placement.transport, SocketTransport):
        # Connecting needs no write access, and code inside cannot put another file here.
        mounts.append(_bind(placement.transport.handover, str(HANDOVER), read_only=True))
    if placement.egress_socket is not None:
        mounts.append(_bind(placement.egress_socket, str(EGRESS_SOCKET), read_only=True))
    if spec.shared_data is not None:
        for path in WORKSPACE_PATHS:
            mounts.append(_bind(spec.shared_data, f"{path}/shared", read_only=True))
    if (project := spec.project) is not None:
        for path in WORKSPACE_PATHS:
            mount = _bind(project.path, f"{path}/{PROJECT}", read_only=project.read_only)
            mounts.append(
                {**mount, "BindOptions": {"NonRecursive": True, "Propagation": "rprivate"}}
            )
    if spec.wheels is not None:
        mounts.append(_bind(spec.wheels, str(WHEELS), read_only=True))
    # `exec`, since installers of packages run programs in /tmp. If the image has this directory, runc
    # ignores the mode.
    options = f"rw,exec,nosuid,nodev,mode=1777,size={size}"
    return {
        "ReadonlyRootfs": True,
        "Mounts": mounts,
        "Tmpfs": {str(path): options for path in (TMP, HOME)} | SEALED,
        "ShmSize": size,
    }


def _limits(limits: Limits, gvisor: bool) -> dict[str, Any]:
    # Under gVisor the threads of the host count, about five for each process inside. gVisor ends when it
    # reaches the limit; processes inside do not get EAGAIN.
    processes = _GVISOR_THREADS + 6 * limits.processes if gvisor else limits.processes
    return {
        "Memory": limits.memory,
        "MemorySwap": limits.memory,  # memory and swap together: no swap
        # Not NanoCpus, which the engine refuses if it exceeds the machine's cores.
        "CpuPeriod": CPU_PERIOD_US,
        "CpuQuota": limits.cpu_quota,
        "PidsLimit": processes,
        # Without `nproc`, which counts the processes of this user in all containers.
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value}
            for name, value in (
                ("core", 1),
                ("fsize", max_file_bytes(limits)),
                ("nofile", limits.open_files),
            )
        ],
    }


def _bind(source: Path, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}


def owner_of(project: HostProject, *, gvisor: bool) -> int:
    """Return the user of a container with a project: its owner, or any if it only reads.

    Raises:
        LaunchError: the project belongs to root, which user code is only on gVisor's own kernel.
    """
    uid = project.owner[0]
    if os.geteuid() != 0:
        return os.geteuid()
    if project.read_only:
        return UID
    if uid == 0 and not gvisor:
        raise LaunchError(
            f"{project.path} belongs to root, and code in containers does not run as root: give it to "
            "another user (chown), or use gVisor or a template with jails"
        )
    return uid
