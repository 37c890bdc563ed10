"""A forked sandbox has the properties of a plain one, field by field, except for listed differences."""

# ruff: noqa: PTH115, PTH208 - links and lists of /proc

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import kernelbroker.sync
import pytest

from tests.e2e.support import whole_system

from .launch_ways import WAYS, broker

pytestmark = whole_system

PROBES = [Path(__file__).with_name(f"{name}_probe.py") for name in ("interpreter", "sandbox")]
CELL = """
import sys
modules = sorted(sys.modules)
import json, os
interpreter, sandbox = probes = ({"__name__": "probe"}, {"__name__": "probe"})
for source, names in zip(SOURCES, probes):
    exec(source, names)
fields = interpreter["observe"]() | sandbox["observe"]() | {"python.modules": modules}
fields = sandbox["clean"](fields)
print(json.dumps([fields, os.readlink("/proc/self/ns/pid"), os.getpid(), os.getppid()]))
"""

_COMMAND = "only a start of a program sets it; what Python says of it is as in a plain sandbox"
_SESSION = "the gateway has a process session of its own, since it joins the one of the holder"
_FILTERS = "the fork server's filter, which forbids less than the sandbox's, is inherited as well"
_HOLDER = "a shell that waits holds the namespaces for the gateway"
ALLOWED = {
    "kernel.cmdline": _COMMAND,
    "kernel.environ": _COMMAND,
    "kernel.processes": _HOLDER,
    "kernel.status.Seccomp_filters": _FILTERS,
    "kernel.threads": "the background thread of Arrow's allocator would not survive a fork",
    "gateway.cmdline": _COMMAND,
    "gateway.environ": _COMMAND,
    "gateway.descriptors": "a pipe to the broker for the exit status, should the server have ended",
    "gateway.group": _SESSION,
    "gateway.parent": "it is outside of the sandbox",
    "gateway.session": _SESSION,
    "gateway.status.Seccomp_filters": _FILTERS,
    "host.others": _HOLDER,
    "python.kept from the collector": "so that a collection does not copy the memory that is shared",
    "python.modules": "those of the gateway and of `fork_server._SHARED` were imported before the fork",
    "python.warnings": "the two filters that scipy adds when it is imported",
}
"""The fields in which a forked sandbox may differ from a plain one, and why."""

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
"""Those that each sandbox has of its own. The clock's is the host's."""
PLACES = ("kernel", "gateway", "python", "host")


@dataclass(frozen=True)
class Observed:
    """One sandbox: what its code sees, what the host sees of it, and its namespaces by kind."""

    fields: dict[str, Any]
    namespaces: dict[str, str]

    def of(self, place: str) -> dict[str, Any]:
        prefix = f"{place}."
        return {name: value for name, value in self.fields.items() if name.startswith(prefix)}


Observe: TypeAlias = Callable[[str], list[Observed]]


@pytest.fixture(scope="module")
def observed() -> Observe:
    """Two sandboxes of one broker that were launched in this way; launched once."""

    @cache
    def observe(way: str) -> list[Observed]:
        # As a shell starts a broker in the background. Our gateway handles this signal, a kernel does not.
        before = signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        try:
            with broker(way, POOL__MIN_SIZE=2) as client:
                return _observe_two(client)
        finally:
            signal.signal(signal.SIGQUIT, before)

    return observe


def _observe_two(client: kernelbroker.sync.Broker) -> list[Observed]:
    with ExitStack() as stack:  # both live at once: the kernel gives numbers of namespaces anew
        sessions = [stack.enter_context(client.session()) for _ in range(2)]
        return [_observe(session) for session in sessions]


def _observe(session: kernelbroker.sync.Session) -> Observed:
    sources = [path.read_text() for path in PROBES]
    result = session.run(CELL.replace("SOURCES", repr(sources)), timeout=120)
    assert result.success, result.as_text()
    fields, namespace, *pids = json.loads(result.stdout)
    names = dict(zip(pids, ("kernel", "gateway"), strict=True))
    outside: dict[str, int] = {}
    others = []
    for pid in _processes_in(namespace):
        seen = _seen_by_the_host(pid)
        name = names.get(seen.pop("pid"))
        if name is None:
            others.append(seen)
        else:
            outside[name] = pid
            fields |= {f"host.{name}.{field}": value for field, value in seen.items()}
    fields["host.others"] = others
    own = _namespaces(outside["kernel"])
    assert own == _namespaces(outside["gateway"])
    return Observed(fields, own)


def _seen_by_the_host(pid: int) -> dict[str, Any]:
    """What the host's /proc tells of a process; `pid` is its number in the sandbox."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    status = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    wanted = ("Uid", "Gid", "Groups", "CapEff", "CapBnd", "NoNewPrivs", "Seccomp")
    groups = Path(f"/proc/{pid}/cgroup").read_text()
    return {
        "pid": int(status["NSpid"][-1]),
        **{name: status[name] for name in wanted},
        "control groups": re.sub(r"kernelbroker-\w+/\w+", "its own", groups),
        "oom_score_adj": Path(f"/proc/{pid}/oom_score_adj").read_text(),
    }


def _namespaces(pid: int | str) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}


def _processes_in(namespace: str) -> list[int]:
    """The host's pids of the processes in this pid namespace."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                found.append(int(name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def _differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    }


@pytest.mark.parametrize("way", WAYS)
def test_two_sandboxes_agree(observed: Observe, way: str) -> None:
    """Two sandboxes that were launched in the same way agree in all fields."""
    one, other = observed(way)
    assert len(one.fields) > 300
    assert _differences(one.fields, other.fields) == {}


@pytest.mark.parametrize("way", WAYS)
def test_namespaces_are_its_own(observed: Observe, way: str) -> None:
    """Each namespace of a sandbox is neither the host's nor another sandbox's."""
    host, (one, other) = _namespaces("self"), observed(way)
    for kind in NAMESPACES:
        assert len({host[kind], one.namespaces[kind], other.namespaces[kind]}) == 3, kind


@pytest.mark.parametrize("place", PLACES)
def test_a_forked_sandbox_is_as_a_plain_one(observed: Observe, place: str) -> None:
    """A forked sandbox differs from a plain one only in the fields that are listed."""
    (plain, _), (forked, _) = observed("plain"), observed("fork")
    assert set(_differences(plain.of(place), forked.of(place))) - ALLOWED.keys() == set()


def test_the_list_of_differences_is_exact(observed: Observe) -> None:
    """The list has no field in which forked and plain sandboxes agree."""
    (plain, _), (forked, _) = observed("plain"), observed("fork")
    assert ALLOWED.keys() <= _differences(plain.fields, forked.fields).keys()


def test_no_module_is_missing(observed: Observe) -> None:
    """What is loaded in a plain sandbox is loaded in a forked one."""
    (plain, _), (forked, _) = observed("plain"), observed("fork")
    assert set(plain.fields["python.modules"]) <= set(forked.fields["python.modules"])
