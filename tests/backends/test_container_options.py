"""The options of a new container, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kernelbroker_server.backends.base import Limits, Network, SandboxSpec
from kernelbroker_server.backends.container_options import (
    ContainerPlacement,
    NetworkTransport,
    SocketTransport,
    container_options,
)

LABELS = {"kernelbroker.broker": "b"}
SOCKET = SocketTransport(Path("/run/one.give"))


def options(
    spec: SandboxSpec, transport: SocketTransport | NetworkTransport = SOCKET, **more: Any
) -> dict[str, Any]:
    placement = ContainerPlacement("name", transport, Path("/data/one"), 1000, LABELS, **more)
    return container_options(
        spec, placement, image="image", runtime="runc", command=("-m", "gateway")
    )


def test_every_boundary_is_set() -> None:
    """The options allow no network, capability, new privilege or write to the image, and one user."""
    asked = options(SandboxSpec())
    host = asked["HostConfig"]
    assert (host["NetworkMode"], asked["NetworkDisabled"]) == ("none", True)
    assert host["CapDrop"] == ["ALL"]
    assert "CapAdd" not in host
    assert host["SecurityOpt"] == [
        "no-new-privileges:true"
    ]  # and so the engine's own seccomp filter
    assert host["ReadonlyRootfs"] is True
    assert host["Privileged"] is False
    assert host["IpcMode"] == "private"
    assert not {"PidMode", "UTSMode", "UsernsMode", "Devices", "Binds"} & host.keys()
    assert asked["User"] == "1000:1000"


def test_limits_have_the_engines_units() -> None:
    """Each limit is passed on in the engine's units, and there is no swap."""
    spec = SandboxSpec(
        limits=Limits(cpus=0.5, memory=1000, processes=20, tmp_size=4096, open_files=64)
    )
    host = options(spec)["HostConfig"]
    assert (host["Memory"], host["MemorySwap"]) == (1000, 1000)
    assert host["CpuQuota"] / host["CpuPeriod"] == 0.5
    assert host["PidsLimit"] == 20
    assert host["ShmSize"] == 4096
    assert all("size=4096" in host["Tmpfs"][path] for path in ("/tmp", "/home/sandbox"))
    assert all("size=" in options for options in host["Tmpfs"].values())
    assert {"Name": "nofile", "Soft": 64, "Hard": 64} in host["Ulimits"]


def test_only_the_workspace_is_writable() -> None:
    """Only the workspace is writable; no directory of sockets is mounted."""
    mounts = options(SandboxSpec(shared_data=Path("/srv/shared"), wheels=Path("/srv/wheels")))[
        "HostConfig"
    ]["Mounts"]
    assert [(mount["Source"], mount["Target"], mount["ReadOnly"]) for mount in mounts] == [
        ("/data/one", "/data", False),
        ("/data/one", "/home/user", False),
        ("/data/one", "/workspace", False),
        ("/run/one.give", "/run/kernelbroker.handover", True),
        ("/srv/shared", "/data/shared", True),
        ("/srv/shared", "/home/user/shared", True),
        ("/srv/shared", "/workspace/shared", True),
        ("/srv/wheels", "/opt/wheels", True),
    ]


def test_options_over_tcp() -> None:
    """Over TCP there is one network with a token, and no resolver or mount."""
    asked = options(SandboxSpec(), NetworkTransport("inside", "secret"))
    assert asked["HostConfig"]["NetworkMode"] == "inside"
    assert asked["HostConfig"]["Dns"] == ["192.0.2.1"]
    assert [mount["Target"] for mount in asked["HostConfig"]["Mounts"]] == [
        "/data",
        "/home/user",
        "/workspace",
    ]
    assert "KG_AUTH_TOKEN=secret" in asked["Env"]
    assert "secret" not in " ".join(asked["Entrypoint"])


def test_options_of_an_allow_list() -> None:
    """With an allow list there is a read-only proxy socket with its variables, but no network."""
    asked = options(SandboxSpec(network=Network.ALLOWLIST), egress_socket=Path("/run/one.out"))
    assert (asked["HostConfig"]["NetworkMode"], asked["NetworkDisabled"]) == ("none", True)
    mount = asked["HostConfig"]["Mounts"][4]
    assert (mount["Source"], mount["Target"]) == ("/run/one.out", "/run/kernelbroker.egress")
    assert mount["ReadOnly"] is True
    assert asked["Entrypoint"][-2:] == ["--egress", "/run/kernelbroker.egress"]
    assert {"http_proxy=http://127.0.0.1:3128", "HTTPS_PROXY=http://127.0.0.1:3128"} <= {
        *asked["Env"]
    }


def test_options_of_an_open_network() -> None:
    """An open network changes only the network."""
    asked = options(SandboxSpec(), network="bridge-of-ours")
    shut = options(SandboxSpec())
    assert asked["HostConfig"].pop("NetworkMode") == "bridge-of-ours"
    assert asked.pop("NetworkDisabled") is False
    del shut["HostConfig"]["NetworkMode"], shut["NetworkDisabled"]
    assert asked == shut


def test_command_and_variables_of_the_container() -> None:
    """Python is the image's own; nothing of the broker's environment is passed on."""
    asked = options(SandboxSpec(imports=("pandas",)))
    gateway = ["python", "-m", "gateway", "--handover", "/run/kernelbroker.handover/socket"]
    assert asked["Entrypoint"] == [*gateway, "--import", "pandas"]
    names = {variable.partition("=")[0] for variable in asked["Env"]}
    assert not {"PATH", "PYTHONPATH"} & names
    assert {"HOME", "TMPDIR", "KERNELBROKER_WORKSPACE"} <= names


def test_labels_of_the_container() -> None:
    """A container has labels of its broker and its template."""
    labels = options(SandboxSpec(template="small"))["Labels"]
    assert labels == {"kernelbroker.broker": "b", "kernelbroker.template": "small"}
