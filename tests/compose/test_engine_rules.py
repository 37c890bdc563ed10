"""The rules of the engine filter, for single requests."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.backends.container_options import (
    LABEL_BROKER,
    LABEL_DATA,
    LABEL_SANDBOX,
    ContainerPlacement,
    SocketTransport,
    container_options,
)
from kernelbroker_server.backends.host_project import HostProject

from compose.engine_filter.rules import Policy, Refused

IMAGE = "registry.example:5000/kernelbroker-kernel:1.0"
POLICY = Policy(
    images=frozenset({IMAGE}),
    data_dir=PurePosixPath("/srv/kb/data"),
    run_dir=PurePosixPath("/srv/kb/run"),
    shared=frozenset({"/srv/kb/shared", "/srv/kb/wheels"}),
)
NAME = "kernelbroker-0123abcd-89abcdef0123"
CREATE = f"/v1.41/containers/create?name={NAME}"
MINE = "%7B%22label%22%3A%5B%22kernelbroker.broker%3D0123abcd%22%5D%7D"
ALL_OURS = "%7B%22label%22%3A%5B%22kernelbroker.data%3D/srv/kb/data%22%5D%7D"


def container(**spec: Any) -> dict[str, Any]:
    """What the broker asks for."""
    placement = ContainerPlacement(
        name=NAME,
        transport=SocketTransport(Path("/srv/kb/run/0123abcd/89abcdef0123.give")),
        egress_socket=Path("/srv/kb/run/0123abcd/89abcdef0123.out"),
        workspace=Path("/srv/kb/data/0123abcd/sandboxes/89abcdef0123/workspace"),
        owner=1000,
        labels={
            LABEL_BROKER: "0123abcd",
            LABEL_DATA: "/srv/kb/data",
            LABEL_SANDBOX: "89abcdef0123",
        },
    )
    shares = {"shared_data": Path("/srv/kb/shared"), "wheels": Path("/srv/kb/wheels")}
    spec = {"env": {"A": "b"}} | shares | spec
    return container_options(
        SandboxSpec(**spec), placement, image=IMAGE, runtime="runc", command=("-m", "gateway")
    )


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("GET", "/version"),
        ("GET", "/v1.41/info"),
        ("GET", "/_ping"),
        ("GET", f"/v1.41/images/{IMAGE}/json"),
        ("GET", f"/v1.41/events?filters={MINE}"),
        ("GET", f"/v1.41/containers/json?limit=-1&all=1&size=0&trunc_cmd=0&filters={ALL_OURS}"),
        ("GET", f"/v1.41/containers/{NAME}/json"),
        ("GET", f"/v1.41/containers/{NAME}/logs?stderr=1&stdout=1&timestamps=0&follow=0&tail=20"),
        ("GET", f"/v1.41/containers/{NAME}/stats?stream=False&one-shot=True"),
        ("GET", f"/v1.41/networks?filters={ALL_OURS}"),
        ("POST", f"/v1.41/containers/{NAME}/start"),
        ("DELETE", f"/v1.41/containers/{NAME}?v=1&link=0&force=1"),
        ("DELETE", "/v1.41/containers/kernelbroker-0123abcd-trial?force=1"),
    ],
)
def test_calls_that_pass(method: str, target: str) -> None:
    """The calls of the broker's backend pass, without a body."""
    _, body = POLICY.check(method, target, b"{}")
    assert body == b""


@pytest.mark.parametrize(
    "spec", [{}, {"shared_data": None}, {"wheels": None}, {"imports": ("pandas",)}]
)
def test_sandbox_containers_pass(spec: dict[str, Any]) -> None:
    """A container with the broker's options is passed on unchanged."""
    wanted = container(**spec)
    _, body = POLICY.check("POST", CREATE, json.dumps(wanted).encode())
    assert json.loads(body) == wanted


@pytest.mark.parametrize(
    ("path", "read_only", "passes"),
    [
        ("/srv/projects/shop", False, True),
        ("/srv/projects", True, True),
        ("/srv/readable/shop", True, True),
        ("/srv/readable/shop", False, False),
        ("/srv/projects-of-others/shop", True, False),
        ("/srv/projects/../other", True, False),
        ("/srv", True, False),
    ],
)
def test_projects(path: str, read_only: bool, passes: bool) -> None:
    """A directory is mounted as a project only below those of the filter, and as it allows."""
    roots = {"/srv/projects": False, "/srv/readable": True}
    policy = dataclasses.replace(POLICY, projects=roots)
    owner = (os.geteuid(), os.getegid())
    wanted = container(project=HostProject(Path(path), read_only, owner))
    data = json.dumps(wanted).encode()
    if passes:
        _, body = policy.check("POST", CREATE, data)
        assert json.loads(body) == wanted
    else:
        with pytest.raises(Refused, match="mount"):
            policy.check("POST", CREATE, data)
    with pytest.raises(Refused, match="mount"):
        POLICY.check("POST", CREATE, data)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        ("POST", f"/v1.41/containers/{NAME}/exec"),
        ("POST", f"/v1.41/containers/{NAME}/attach?stream=1"),
        ("GET", f"/v1.41/containers/{NAME}/attach/ws"),
        ("PUT", f"/v1.41/containers/{NAME}/archive?path=/"),
        ("POST", f"/v1.41/containers/{NAME}/update"),
        ("POST", f"/v1.41/containers/{NAME}/rename?name=x"),
        ("POST", "/v1.41/exec/0123/start"),
        ("POST", "/v1.41/images/create?fromImage=busybox"),
        ("POST", "/v1.41/images/load"),
        ("GET", "/v1.41/images/json"),
        ("GET", "/v1.41/images/other/json"),
        ("GET", f"/v1.41/images/{IMAGE}/get"),
        ("DELETE", f"/v1.41/images/{IMAGE}"),
        ("POST", "/v1.41/build"),
        ("POST", "/v1.41/commit?container=x"),
        ("GET", "/v1.41/volumes"),
        ("POST", "/v1.41/volumes/create"),
        ("GET", "/v1.41/networks"),
        ("POST", "/v1.41/networks/create"),
        ("POST", "/v1.41/swarm/init"),
        ("GET", "/v1.41/secrets"),
        ("GET", "/v1.41/plugins"),
        ("POST", "/v1.41/auth"),
        ("POST", "/session"),
        ("POST", "/grpc"),
        # Other containers, and names that only look like a sandbox's
        ("GET", "/v1.41/containers/0123456789ab/json"),
        ("DELETE", "/v1.41/containers/kernelbroker_broker_1?force=1"),
        ("DELETE", "/v1.41/containers/kernelbroker-broker-1?force=1"),
        ("DELETE", f"/v1.41/containers/{NAME}%2f..%2fother"),
        ("GET", f"/v1.41/containers/{NAME}/../other/json"),
        ("GET", f"/v1.41/containers/{NAME}%0a/json"),
        ("GET", "/v1.41/containers/kernelbroker-0123ABCD-x/json"),
        ("GET", f"//v1.41/containers/{NAME}/json"),
        ("GET", f"http://engine/v1.41/containers/{NAME}/json"),
        ("get", "/version"),
        ("GET", f"/v1.41/containers/{NAME}/json?size=1"),
        # Lists and events of more than sandboxes
        ("GET", "/v1.41/containers/json"),
        ("GET", "/v1.41/containers/json?filters="),
        ("GET", "/v1.41/containers/json?filters=%7B%7D"),
        ("GET", "/v1.41/containers/json?filters=%7B%22label%22%3A%5B%22a%22%5D%7D"),
        (
            "GET",
            "/v1.41/containers/json?filters=%7B%22label%22%3A%5B%22kernelbroker.data%3D/%22%5D%7D",
        ),
        ("GET", f"/v1.41/containers/json?filters={MINE}&filters=%7B%7D"),
        ("GET", "/v1.41/events"),
        ("GET", f"/v1.41/events?since=0&filters={MINE}"),
        # Names of new containers
        ("POST", "/v1.41/containers/create"),
        ("POST", "/v1.41/containers/create?name=other"),
        ("POST", f"{CREATE}&name=other"),
        ("POST", f"{CREATE}&platform=linux"),
        ("POST", "/v1.41/containers/create?name=kernelbroker-0123abcd-x%0a"),
    ],
)
def test_calls_that_are_refused(method: str, target: str) -> None:
    """Calls that no broker makes are refused, even with a valid body."""
    with pytest.raises(Refused):
        POLICY.check(method, target, json.dumps(container()).encode())


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("Image", "other"),
        ("Image", [IMAGE]),
        ("User", "0:0"),
        ("User", ""),
        ("Env", "A=b"),
        ("Entrypoint", "sh -c id"),
        ("NetworkDisabled", False),
        ("NetworkDisabled", 1),
        ("Labels", {}),
        ("Volumes", {"/": {}}),
        ("NetworkingConfig", {"EndpointsConfig": {"bridge": {}}}),
        ("hostconfig", {"Privileged": True}),
        ("HostConfig", None),
        ("HostConfig.Privileged", True),
        ("HostConfig.privileged", True),
        ("HostConfig.Runtime", "other"),
        ("HostConfig.NetworkMode", "host"),
        ("HostConfig.IpcMode", "host"),
        ("HostConfig.PidMode", "host"),
        ("HostConfig.UsernsMode", "host"),
        ("HostConfig.CapAdd", ["SYS_ADMIN"]),
        ("HostConfig.CapDrop", []),
        ("HostConfig.SecurityOpt", ["seccomp=unconfined"]),
        ("HostConfig.SecurityOpt", ["no-new-privileges:true", "apparmor=unconfined"]),
        ("HostConfig.Binds", ["/:/host"]),
        ("HostConfig.VolumesFrom", ["other"]),
        ("HostConfig.Devices", [{"PathOnHost": "/dev/sda"}]),
        ("HostConfig.PortBindings", {}),
        ("HostConfig.CgroupParent", "/"),
        ("HostConfig.Sysctls", {"kernel.core_pattern": "|/x"}),
        ("HostConfig.ReadonlyRootfs", False),
        ("HostConfig.RestartPolicy", {"Name": "always"}),
        ("HostConfig.LogConfig", {"Type": "syslog", "Config": {}}),
        ("HostConfig.Memory", 0),
        ("HostConfig.PidsLimit", -1),
        ("HostConfig.PidsLimit", True),
        ("HostConfig.Tmpfs", {"/etc": "rw"}),
        ("HostConfig.Ulimits", [{"Name": "nproc", "Soft": 1, "Hard": 1}]),
        ("HostConfig.Mounts", {}),
        ("HostConfig.Mounts", [{}]),
        ("HostConfig.Mounts.0.Source", "/"),
        ("HostConfig.Mounts.0.Source", "/srv/kb/data/0123abcd"),
        ("HostConfig.Mounts.0.Source", "/srv/kb/data/0123abcd/sandboxes/../workspace"),
        ("HostConfig.Mounts.0.Source", "/srv/kb/data/0123abcd/sandboxes/a/workspace/../../../.."),
        ("HostConfig.Mounts.0.Target", "/etc"),
        ("HostConfig.Mounts.0.Type", "volume"),
        ("HostConfig.Mounts.0.BindOptions", {"Propagation": "shared"}),
        ("HostConfig.Mounts.1.Source", "/srv/kb"),
        ("HostConfig.Mounts.3.ReadOnly", False),
        ("HostConfig.Mounts.3.Source", "/var/run/docker.sock"),
        ("HostConfig.Mounts.4.ReadOnly", False),
        ("HostConfig.Mounts.4.Source", "/etc"),
        ("HostConfig.Mounts.5.ReadOnly", False),
        ("HostConfig.Mounts.5.Source", "/srv/kb"),
        ("HostConfig.Mounts.6.ReadOnly", False),
        ("HostConfig.Mounts.6.Source", "/etc"),
        ("HostConfig.Mounts.5.Target", "/opt"),
    ],
)
def test_containers_that_are_refused(key: str, value: Any) -> None:
    """A container that differs from a sandbox in one place is refused."""
    wanted = copy.deepcopy(container())
    *way, last = key.split(".")
    place: Any = wanted
    for step in way:
        place = place[int(step) if step.isdigit() else step]
    assert last not in place or place[last] != value or type(place[last]) is not type(value)
    place[last] = value
    with pytest.raises(Refused):
        POLICY.check("POST", CREATE, json.dumps(wanted).encode())


@pytest.mark.parametrize("path", [(), ("HostConfig",), ("HostConfig", "Mounts", 0)])
def test_a_key_that_is_missing(path: tuple[Any, ...]) -> None:
    """Every key must be present, since the engine's defaults are different."""
    wanted = container()
    place: Any = wanted
    for step in path:
        place = place[step]
    for key in list(place):
        value = place.pop(key)
        with pytest.raises(Refused):
            POLICY.check("POST", CREATE, json.dumps(wanted).encode())
        place[key] = value


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"{", b"3", b"\xff", b"[" * 100_000])
def test_invalid_bodies_are_refused(body: bytes) -> None:
    """A body that is not a JSON object is refused."""
    with pytest.raises(Refused):
        POLICY.check("POST", CREATE, body)


def test_repeated_keys_are_encoded_again() -> None:
    """The filter passes on the JSON that it has checked, and not the original body."""
    text = json.dumps(container())
    twice = text.replace('"Privileged": false', '"Privileged": true, "Privileged": false')
    assert twice != text
    _, body = POLICY.check("POST", CREATE, twice.encode())
    assert json.loads(body) == container()
    assert body.count(b'"Privileged"') == 1
    other_way = text.replace('"Privileged": false', '"Privileged": false, "Privileged": true')
    with pytest.raises(Refused):
        POLICY.check("POST", CREATE, other_way.encode())


UPDATE = f"/v1.41/containers/{NAME}/update"


def test_limits_can_be_changed() -> None:
    """Memory and processors of a sandbox can be limited, and nothing else of it can be changed."""
    limits = {"Memory": 1024, "MemorySwap": 1024, "CpuPeriod": 100_000, "CpuQuota": 50_000}
    assert json.loads(POLICY.check("POST", UPDATE, json.dumps(limits).encode())[1]) == limits
    for other in (
        limits | {"Memory": 0},
        limits | {"Memory": -1, "MemorySwap": -1},
        limits | {"CpuQuota": -1},
        {"Memory": 1024},
        limits | {"CpusetCpus": "0"},
        limits | {"Devices": []},
        [],
    ):
        with pytest.raises(Refused):
            POLICY.check("POST", UPDATE, json.dumps(other).encode())
    with pytest.raises(Refused):
        POLICY.check("POST", "/v1.41/containers/another/update", json.dumps(limits).encode())
