"""Processes beside the kernel have the confinement of the kernel's own children, on each backend."""

from __future__ import annotations

import base64
import json
from struct import pack, unpack_from
from typing import Any
from urllib.request import Request, urlopen

import pytest
from kernelbroker.sync import Session

from tests.backends.probes import BACKENDS, LOCAL_FORK

from .conftest import World

pytestmark = pytest.mark.sandbox

FACTS = """
import json, os, resource
status = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
names = ("Uid", "Gid", "Groups", "NoNewPrivs", "Seccomp", "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")
facts = {name: status[name].split() for name in names}
limits = [name for name in dir(resource) if name.startswith("RLIMIT_")]
facts |= {name: resource.getrlimit(getattr(resource, name)) for name in limits}
spaces = ("net", "pid", "mnt", "user", "ipc", "uts")
facts |= {name: os.readlink(f"/proc/self/ns/{name}") for name in spaces}
facts["cgroup"] = open("/proc/self/cgroup").read()
facts["descriptors"] = sorted(os.listdir("/proc/self/fd"))[:3], len(os.listdir("/proc/self/fd"))
print(json.dumps(facts))
"""


def run(world: World, session: Session, cmd: str, *args: str) -> dict[str, bytes | dict[str, Any]]:
    """Run a process in a session, by E2B's protocol. Returns its outputs, and its end."""
    message = json.dumps({"process": {"cmd": cmd, "args": args}, "stdin": False}).encode()
    headers = {
        "Content-Type": "application/connect+json",
        "Connect-Timeout-Ms": "60000",
        "E2b-Sandbox-Id": session.session_id,
        "E2b-Sandbox-Port": "49983",
        "X-API-Key": world.broker.token,
    }
    body = pack("!BI", 0, len(message)) + message
    request = Request(f"{world.broker.url}/process.Process/Start", body, headers)
    with urlopen(request, timeout=60) as answer:
        data = answer.read()
    found: dict[str, Any] = {"stdout": b"", "stderr": b""}
    offset = 0
    while offset < len(data):
        _, size = unpack_from("!BI", data, offset)
        fields = json.loads(data[offset + 5 : offset + 5 + size])
        offset += 5 + size
        event = fields.get("event", {})
        for name, content in event.get("data", {}).items():
            found[name] += base64.b64decode(content)
        found |= {"end": event["end"]} if "end" in event else {}
        assert "error" not in fields, fields
    return found


@pytest.mark.parametrize("kind", [*BACKENDS, LOCAL_FORK], indirect=True, scope="session")
def test_a_process_is_confined_as_a_child_of_the_kernel(kind: str, world: World) -> None:
    """User, capabilities, filter, limits and namespaces are the same, and no descriptor is inherited."""
    with world.client.session() as session:
        cell = session.run(f"import subprocess, sys\nsource = {FACTS!r}")
        assert cell.success, cell
        child = session.run(
            "print(subprocess.run([sys.executable, '-c', source], "
            "capture_output=True, text=True, check=True).stdout)"
        )
        expected = json.loads(str(child.stdout))
        ran = run(world, session, "python", "-c", FACTS)
        assert ran["end"] == {"exitCode": 0, "exited": True, "status": "exit status 0"}, ran
        assert json.loads(ran["stdout"]) == expected


@pytest.mark.parametrize("kind", [*BACKENDS, LOCAL_FORK], indirect=True, scope="session")
def test_processes_end_with_the_sandbox(kind: str, world: World) -> None:
    """A restart replaces the sandbox: what ran in the old one has ended, and the new one has none."""
    with world.client.session() as session:
        run(world, session, "sh", "-c", "sleep 1000 >/dev/null 2>&1 &")
        count = (
            "import glob\n"
            "sum(b'sleep' in open(p, 'rb').read() for p in glob.glob('/proc/[0-9]*/cmdline'))"
        )
        assert str(session.run(count).text).strip() == "1"
        session.restart()
        result = session.run(count)
        assert (str(result.text).splitlines()[0], result.kernel_restarted) == ("0", True)


@pytest.mark.parametrize("kind", [*BACKENDS, LOCAL_FORK], indirect=True, scope="session")
def test_a_process_that_needs_too_much_memory_ends(kind: str, world: World) -> None:
    """The limit of memory is that of the sandbox, for processes as for cells, and the session goes on."""
    with world.client.session() as session:
        code = "data = bytearray(b'x') * 600_000_000; print(len(data))"
        try:
            ran = run(world, session, "python", "-c", code)
        except (OSError, AssertionError):  # the sandbox ended, and the stream with it
            ran = {"stdout": b""}
        assert not ran["stdout"]
        assert session.run("1 + 1").success
