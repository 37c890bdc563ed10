"""What can be observed of a sandbox: from inside, by the probes, and from the host."""

# ruff: noqa: PTH115, PTH208 - links and lists of /proc

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernelbroker.sync

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

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
"""Those that each sandbox has of its own. The clock's is the host's."""


@dataclass(frozen=True)
class Observed:
    """One sandbox: what its code sees, what the host sees of it, and its namespaces by kind."""

    fields: dict[str, Any]
    namespaces: dict[str, str]

    def of(self, place: str) -> dict[str, Any]:
        prefix = f"{place}."
        return {name: value for name, value in self.fields.items() if name.startswith(prefix)}


def observe(session: kernelbroker.sync.Session) -> Observed:
    sources = [path.read_text() for path in PROBES]
    result = session.run(CELL.replace("SOURCES", repr(sources)), timeout=120)
    assert result.success, result.as_text()
    fields, namespace, *pids = json.loads(result.stdout)
    names = dict(zip(pids, ("kernel", "gateway"), strict=True))
    outside: dict[str, int] = {}
    others = []
    for pid in processes_in(namespace):
        seen = _seen_by_the_host(pid)
        name = names.get(seen.pop("pid"))
        if name is None:
            others.append(seen)
        else:
            outside[name] = pid
            fields |= {f"host.{name}.{field}": value for field, value in seen.items()}
    fields["host.others"] = others
    own = namespaces(outside["kernel"])
    assert own == namespaces(outside["gateway"])
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


def namespaces(pid: int | str) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in NAMESPACES}


def processes_in(namespace: str) -> list[int]:
    """The host's pids of the processes in this pid namespace."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                found.append(int(name))
        except OSError:  # it has ended, or belongs to another user
            continue
    return found


def differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    return {
        name: (one.get(name), other.get(name))
        for name in sorted(one.keys() | other.keys())
        if one.get(name) != other.get(name)
    }
