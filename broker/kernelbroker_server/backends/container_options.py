"""A sandbox as a container: what the engine is asked for. Pure: a spec in, the API's JSON out.

The body of `POST /containers/create` (Docker Engine API 1.41, which Podman understands as well). What
is not named here is the engine's default on purpose: its seccomp profile, the masked parts of /proc
and /sys, and namespaces of its own for everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernelbroker_kernel.contract import TOKEN_VARIABLE, WORKSPACE

from .base import Limits, SandboxSpec
from .inside import HOME, TMP, WAY_OUT, WHEELS, environment, gateway_argv, max_file_bytes
from .internal_network import NO_RESOLVER, PORT

LABEL_BROKER = "kernelbroker.broker"
LABEL_DATA = "kernelbroker.data"
"""The directory in which the brokers that may share this engine and these files keep their locks."""
LABEL_SANDBOX = "kernelbroker.sandbox"
LABEL_TEMPLATE = "kernelbroker.template"

HANDOVER = Path("/run/kernelbroker.handover")
PYTHON = "python"
"""Found by the image's own PATH, so that an image may bring a Python of its own."""

_CPU_PERIOD_US = 100_000
SEALED = {
    "/run": "rw,noexec,nosuid,nodev,mode=755,size=64k",
    "/run/lock": "ro,size=4k",
    "/var/tmp": "ro,size=4k",
}
"""Where Podman would mount memory without a bound that user code can write to."""


@dataclass(frozen=True, slots=True)
class OnSocket:
    """A gateway that is handed its listening unix socket over another one, at `handover`."""

    handover: Path


@dataclass(frozen=True, slots=True)
class OnNetwork:
    """A gateway that listens on a port in the network of this name, and asks for the token."""

    network: str
    token: str


@dataclass(frozen=True, slots=True)
class Place:
    """What one container has on the host.

    Attributes:
        name: of the container.
        way: how the gateway is reached.
        workspace: the directory that is /data inside.
        owner: the user that code in the container is, inside and on the host.
        labels: by which brokers find their containers.
        way_out: the proxy's socket, if it may use one.
        network: of the engine, if it may use one.
    """

    name: str
    way: OnSocket | OnNetwork
    workspace: Path
    owner: int
    labels: dict[str, str]
    way_out: Path | None = None
    network: str | None = None


def container_options(
    spec: SandboxSpec, place: Place, *, image: str, runtime: str, command: Sequence[str]
) -> dict[str, Any]:
    """The whole request.

    `image` is for a spec that names none; `command` is what Python is given, before the gateway's
    options.
    """
    variables = environment(spec, home=HOME, tmp=TMP, workspace=Path(WORKSPACE))
    match place.way:
        case OnSocket():
            listen = ("--handover", str(HANDOVER))
            network: dict[str, Any] = {"NetworkMode": place.network or "none"}
        case OnNetwork(network=name, token=token):
            listen = ("--tcp", f"0.0.0.0:{PORT}")
            network = {"NetworkMode": name, "Dns": [NO_RESOLVER]}
            variables[TOKEN_VARIABLE] = token
    return {
        "Image": spec.image or image,
        "Entrypoint": gateway_argv(PYTHON, command, listen, spec),
        "Cmd": [],
        "Env": [f"{name}={value}" for name, value in variables.items()],
        "User": f"{place.owner}:{place.owner}",
        "WorkingDir": WORKSPACE,
        "Hostname": "sandbox",
        "Labels": place.labels | {LABEL_TEMPLATE: spec.template},
        "NetworkDisabled": network["NetworkMode"] == "none",
        "Healthcheck": {"Test": ["NONE"]},  # the broker watches; a check would cost each sandbox
        "HostConfig": {
            "Runtime": runtime,
            **network,
            "IpcMode": "private",
            "Init": True,
            "Privileged": False,
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges:true"],
            "RestartPolicy": {"Name": "no"},
            # What the gateway writes is for whoever looks into a failure, and hostile.
            "LogConfig": {"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}},
            **_files(spec, place),
            **_limits(spec.limits),
        },
    }


def _files(spec: SandboxSpec, place: Place) -> dict[str, Any]:
    size = spec.limits.tmp_size
    mounts = [_bind(place.workspace, WORKSPACE)]
    if isinstance(place.way, OnSocket):
        # Connecting needs no right to write to the mount, and nobody inside can put another file here.
        mounts.append(_bind(place.way.handover, str(HANDOVER), read_only=True))
    if place.way_out is not None:
        mounts.append(_bind(place.way_out, str(WAY_OUT), read_only=True))
    if spec.shared_data is not None:
        mounts.append(_bind(spec.shared_data, f"{WORKSPACE}/shared", read_only=True))
    if spec.wheels is not None:
        mounts.append(_bind(spec.wheels, str(WHEELS), read_only=True))
    # Programs may be run: what a package's installer builds in /tmp has to be. The mode is no more than
    # a wish: where the image has a directory of that name, runc takes that one's.
    options = f"rw,exec,nosuid,nodev,mode=1777,size={size}"
    return {
        "ReadonlyRootfs": True,
        "Mounts": mounts,
        "Tmpfs": {str(path): options for path in (TMP, HOME)} | SEALED,
        "ShmSize": size,
    }


def _limits(limits: Limits) -> dict[str, Any]:
    return {
        "Memory": limits.memory,
        "MemorySwap": limits.memory,  # memory and swap together: no swap
        # Not NanoCpus, which the engine refuses where it exceeds the machine's own.
        "CpuPeriod": _CPU_PERIOD_US,
        "CpuQuota": max(1000, int(limits.cpus * _CPU_PERIOD_US)),  # the kernel takes no less
        "PidsLimit": limits.processes,
        # No limit of processes: that one counts all that this user runs, in every container.
        "Ulimits": [
            {"Name": name, "Soft": value, "Hard": value}
            for name, value in (
                ("core", 0),
                ("fsize", max_file_bytes(limits)),
                ("nofile", limits.open_files),
            )
        ],
    }


def _bind(source: Path, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {"Type": "bind", "Source": str(source), "Target": target, "ReadOnly": read_only}
