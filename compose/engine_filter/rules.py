"""The rules of the filter, as pure functions: which requests may pass to the engine.

The calls are those of `kernelbroker_server.backends.engine`; a new container must have the options
of `container_options`. The rules refuse everything that is not listed here, including single keys
of a new container. The filter encodes JSON again after parsing it, so that repeated keys and keys
in another case cannot mean something else to the engine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, TypeAlias
from urllib.parse import parse_qsl, urlencode

from kernelbroker_kernel.contract import PROJECT, WORKSPACE, WORKSPACE_PATHS
from kernelbroker_server.backends.container_options import (
    HANDOVER,
    LABEL_BROKER,
    LABEL_DATA,
    LABEL_SANDBOX,
    LABEL_TEMPLATE,
    SEALED,
)
from kernelbroker_server.backends.sandbox_layout import EGRESS_SOCKET, HOME, TMP, UID, WHEELS

Check: TypeAlias = Callable[[Any], bool]

BROKER_ID = "[0-9a-f]{8}"
SANDBOX_ID = "[a-z0-9][a-z0-9-]{0,40}"
_PROJECTS = tuple(f"{path}/{PROJECT}" for path in WORKSPACE_PATHS)
NAME = f"kernelbroker-{BROKER_ID}-{SANDBOX_ID}"


class Refused(Exception):
    """The request may not pass. The message gives the reason and quotes at most a key of the request."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The settings of the filter.

    Attributes:
        images: the allowed images of sandboxes, with the names of the broker's settings.
        data_dir, run_dir: the broker's directories, with their paths on the host.
        shared: directories that sandboxes may mount read-only: shared data and wheels.
        runtimes: the allowed runtimes of the engine.
        projects: directories below which projects may be mounted, and whether only read-only.
    """

    images: frozenset[str]
    data_dir: PurePosixPath
    run_dir: PurePosixPath
    shared: frozenset[str] = frozenset()
    runtimes: frozenset[str] = frozenset({"runc", "runsc"})
    projects: Mapping[str, bool] = field(default_factory=dict)

    def check(self, method: str, target: str, body: bytes) -> tuple[str, bytes]:
        """Return the target and the body to pass to the engine. Raises Refused."""
        path, _, query = target.partition("?")
        options = _options(query, self._allowed_options(method, path))
        if path.endswith(("/events", "/containers/json", "/networks")):
            self._check_filters(options)
        target = f"{path}?{urlencode(options)}" if options else path
        if path.endswith("/update"):
            limits = _json(body)
            keys = ("Memory", "MemorySwap", "CpuPeriod", "CpuQuota")
            _check_object("the limits", limits, dict.fromkeys(keys, _positive))
            return target, json.dumps(limits).encode()
        if not path.endswith("/containers/create"):
            return target, b""
        if not re.fullmatch(NAME, options.get("name", ""), re.ASCII):
            raise Refused("the name is not that of a sandbox")
        wanted = _json(body)
        _check_object("the container", wanted, self._container())
        _check_object("HostConfig", wanted["HostConfig"], self._host_config())
        for mount in wanted["HostConfig"]["Mounts"]:
            self._check_mount(mount)
        return target, json.dumps(wanted).encode()

    def _allowed_options(self, method: str, path: str) -> set[str]:
        image = "|".join(map(re.escape, self.images))
        for verb, pattern, options in _calls(image):
            if verb == method and re.fullmatch(rf"(/v1\.\d\d)?{pattern}", path, re.ASCII):
                return options
        raise Refused("the broker does not make this call")

    def _check_filters(self, options: Mapping[str, str]) -> None:
        """Allow lists and events only of containers that brokers with this data_dir have made."""
        match _json(options.get("filters", "").encode()):
            case {"label": [str(label)], **rest} if rest in ({}, {"type": ["container"]}):
                of_a_broker = re.fullmatch(f"{LABEL_BROKER}={BROKER_ID}", label, re.ASCII)
                if of_a_broker or label == f"{LABEL_DATA}={self.data_dir}":
                    return
        raise Refused("the filters must have the label of a broker")

    def _container(self) -> dict[str, Check]:
        return {
            "Image": lambda value: _string(value) and value in self.images,
            "Entrypoint": _strings,
            "Cmd": _is([]),
            "Env": _strings,
            "User": _is(f"{UID}:{UID}"),
            "WorkingDir": _is(WORKSPACE),
            "Hostname": _is("sandbox"),
            "Labels": self._labels,
            "NetworkDisabled": _is(True),
            "Healthcheck": _is({"Test": ["NONE"]}),
            "HostConfig": lambda value: isinstance(value, dict),
        }

    def _host_config(self) -> dict[str, Check]:
        tmpfs = re.compile(r"rw,exec,nosuid,nodev,mode=1777,size=[1-9]\d*", re.ASCII)
        return {
            "Runtime": lambda value: _string(value) and value in self.runtimes,
            "NetworkMode": _is("none"),
            "IpcMode": _is("private"),
            "Init": _is(True),
            "Privileged": _is(False),
            "CapDrop": _is(["ALL"]),
            "SecurityOpt": _is(["no-new-privileges:true"]),
            "RestartPolicy": _is({"Name": "no"}),
            "LogConfig": _is({"Type": "json-file", "Config": {"max-size": "64k", "max-file": "1"}}),
            "ReadonlyRootfs": _is(True),
            "Mounts": lambda value: isinstance(value, list) and len(value) <= 12,
            "Tmpfs": lambda value: (
                isinstance(value, dict)
                and value.keys() == {str(TMP), str(HOME), *SEALED}
                and all(value[path] == options for path, options in SEALED.items())
                and all(
                    _string(value[p]) and tmpfs.fullmatch(value[p]) for p in map(str, (TMP, HOME))
                )
            ),
            "ShmSize": _positive,
            "Memory": _positive,
            "MemorySwap": _positive,
            "CpuPeriod": _positive,
            "CpuQuota": _positive,
            "PidsLimit": _positive,
            "Ulimits": lambda value: isinstance(value, list) and all(map(_ulimit, value)),
        }

    def _labels(self, value: Any) -> bool:
        return (
            isinstance(value, dict)
            and value.keys() == {LABEL_BROKER, LABEL_DATA, LABEL_SANDBOX, LABEL_TEMPLATE}
            and all(map(_string, value.values()))
            and value[LABEL_DATA] == str(self.data_dir)
        )

    def _check_mount(self, mount: Any) -> None:
        texts = {"Type": _is("bind"), "Source": _string, "Target": _string}
        if isinstance(mount, dict) and mount.get("Target") in _PROJECTS:
            texts["BindOptions"] = _is({"NonRecursive": True, "Propagation": "rprivate"})
        _check_object("a mount", mount, texts | {"ReadOnly": lambda v: isinstance(v, bool)})
        source, target, read_only = mount["Source"], mount["Target"], mount["ReadOnly"]
        workspace = f"{re.escape(str(self.data_dir))}/{BROKER_ID}/sandboxes/{SANDBOX_ID}/workspace"
        sockets = f"{re.escape(str(self.run_dir))}/{BROKER_ID}/{SANDBOX_ID}"
        handover, egress_socket = f"{sockets}\\.give", f"{sockets}\\.out"
        if target in WORKSPACE_PATHS and not read_only:
            allowed = bool(re.fullmatch(workspace, source, re.ASCII))
        elif target == str(HANDOVER) and read_only:
            allowed = bool(re.fullmatch(handover, source, re.ASCII))
        elif target == str(EGRESS_SOCKET) and read_only:
            allowed = bool(re.fullmatch(egress_socket, source, re.ASCII))
        elif target in _PROJECTS:
            allowed = self._is_project(source, read_only)
        else:
            shared = target in (*(f"{path}/shared" for path in WORKSPACE_PATHS), str(WHEELS))
            allowed = shared and read_only and source in self.shared
        if not allowed:
            raise Refused("a mount is not one of a sandbox")

    def _is_project(self, source: str, read_only: bool) -> bool:
        """Whether a directory may be mounted as a project. Links below it are the broker's to check."""
        path = PurePosixPath(source)
        return ".." not in path.parts and any(
            path.is_relative_to(root) and (read_only or not only_reads)
            for root, only_reads in self.projects.items()
        )


def _calls(image: str) -> list[tuple[str, str, set[str]]]:
    """Method, path and the options of each call that may pass."""
    return [
        ("GET", "/_ping", set()),
        ("GET", "/version", set()),
        ("GET", "/info", set()),
        ("GET", "/events", {"filters"}),
        ("GET", f"/images/({image})/json", set()),
        ("GET", "/containers/json", {"all", "limit", "size", "trunc_cmd", "filters"}),
        ("GET", f"/containers/{NAME}/json", set()),
        (
            "GET",
            f"/containers/{NAME}/logs",
            {"stdout", "stderr", "timestamps", "follow", "tail"},
        ),
        ("GET", f"/containers/{NAME}/stats", {"stream", "one-shot"}),
        ("GET", "/networks", {"filters"}),
        ("POST", "/containers/create", {"name"}),
        ("POST", f"/containers/{NAME}/start", set()),
        ("POST", f"/containers/{NAME}/update", set()),
        ("DELETE", f"/containers/{NAME}", {"v", "link", "force"}),
    ]


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise Refused("the body or a filter is not JSON") from error


def _options(query: str, allowed: set[str]) -> dict[str, str]:
    pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=20)
    options = dict(pairs)
    if len(options) != len(pairs) or not options.keys() <= allowed:
        raise Refused("the broker does not use these query parameters")
    return options


def _check_object(what: str, value: Any, checks: Mapping[str, Check]) -> None:
    """Check that every expected key is present and valid, and that there is no other key."""
    if not isinstance(value, dict) or value.keys() != checks.keys():
        raise Refused(f"the keys of {what} are not those of a sandbox")
    for key, check in checks.items():
        if not check(value[key]):
            raise Refused(f"{key} of {what} is not that of a sandbox")


def _is(expected: Any) -> Check:
    # Compare the type as well: in Python True equals 1.
    return lambda value: type(value) is type(expected) and value == expected


def _string(value: Any) -> bool:
    return isinstance(value, str)


def _strings(value: Any) -> bool:
    return isinstance(value, list) and all(map(_string, value))


def _positive(value: Any) -> bool:
    return type(value) is int and value > 0


def _ulimit(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and value.keys() == {"Name", "Soft", "Hard"}
        and value["Name"] in ("core", "fsize", "nofile")
        and all(type(value[key]) is int and value[key] >= 0 for key in ("Soft", "Hard"))
    )
