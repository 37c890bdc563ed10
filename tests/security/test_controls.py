"""Positive controls: attempts that fail in a sandbox succeed in a plain process of the host.

An attempt that fails everywhere, through a mistake in its own code, would show nothing. These are the
attempts of each table that do no harm outside of a sandbox.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requires import requires

from .attempts import all_attempts
from .attempts.prelude import prelude
from .conftest import World

pytestmark = [pytest.mark.sandbox, requires("root")]

HARMLESS = {
    "Files of the host and the broker": [
        "the passwords of the host",
        "homes, keys and settings",
        "the broker's token",
        "the broker's sources",
        "the broker's modules",
        "the data directory",
        "the run directory",
    ],
    "Files of other sandboxes": ["another workspace by its path"],
    "Links": ["a file by its handle"],
    "Processes outside": [
        "to see them",
        "to signal the broker",
        "a descriptor of it",
        "its environment",
        "its memory",
        "its memory by a call",
    ],
    "Inherited descriptors and environment": ["secrets in an environment"],
    "Privileges": ["setuid", "capabilities"],
    "Namespaces and mounts": ["a user namespace", "other namespaces"],
    "Devices": ["one that was not meant to be there"],
    "The network": [
        "the broker's port on the loopback",
        "the broker's port on the host's addresses",
        "the host's abstract sockets",
        "to see the host's sockets",
        "raw sockets",
        "packet sockets",
    ],
    "Shares": ["descriptors", "processes", "threads"],
    "Calls of the host's kernel": ["keyrings", "bpf", "what others do with files"],
    "/proc and /sys of the host": ["the program for core dumps"],
    "Files that all sandboxes share": ["the packages' code"],
    "Sockets of rare kinds": ["rare families of netlink"],
}
ATTEMPTS = {(attempt.group, attempt.name): attempt for attempt in all_attempts()}


def test_each_table_has_a_control() -> None:
    """Each table has an attempt that is known to succeed elsewhere."""
    assert set(HARMLESS) == {attempt.group for attempt in all_attempts()}


@pytest.mark.parametrize(
    ("group", "name"), [(group, name) for group, names in HARMLESS.items() for name in names]
)
def test_attempt_succeeds_outside(world: World, group: str, name: str) -> None:
    """A plain process of root gets at least one verdict that no sandbox may get."""
    attempt = ATTEMPTS[group, name]
    program = f"{prelude(world.facts)}\n{attempt.code}\nimport json; print(json.dumps(verdict))"
    core_pattern = Path("/proc/sys/kernel/core_pattern")
    before = core_pattern.read_text()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    core_pattern.write_text(before)  # one of the attempts sets it
    assert done.returncode == 0, done.stderr
    verdicts = json.loads(done.stdout.splitlines()[-1])
    found = set(verdicts if isinstance(verdicts, list) else [verdicts])
    assert found - attempt.right(world.kind), found
