"""The files that control groups are set with, on an imitation of version 2.

test_local.py uses the real control groups of the machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelbroker_server.backends import cgroups
from kernelbroker_server.backends.base import Limits
from kernelbroker_server.backends.cgroups import Cgroup, Cgroups, Version, settings

LIMITS = Limits(cpus=1.5, memory=1024, processes=7)


def test_settings_of_each_version() -> None:
    """Each version has its own files, and the limit of memory includes swap."""
    assert settings(Version.V1, "memory", LIMITS) == {
        "memory.limit_in_bytes": "1024",
        "memory.memsw.limit_in_bytes": "1024",
    }
    assert settings(Version.V2, "memory", LIMITS) == {
        "memory.max": "1024",
        "memory.swap.max": "0",
    }
    assert settings(Version.V1, "pids", LIMITS) == settings(Version.V2, "pids", LIMITS)
    assert settings(Version.V2, "pids", LIMITS) == {"pids.max": "7"}
    assert settings(Version.V2, "cpu", LIMITS) == {"cpu.max": "150000 100000"}
    assert settings(Version.V1, "cpu", LIMITS)["cpu.cfs_quota_us"] == "150000"
    assert settings(Version.V2, "cpu", Limits(cpus=0.001)) == {"cpu.max": "1000 100000"}


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An imitation of the broker's own group of version 2."""
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").touch()
    monkeypatch.setattr(cgroups, "_own_group", lambda root: root)
    make_directory = Path.mkdir

    def mkdir(self: Path, *args: object, **kwargs: object) -> None:
        make_directory(self, *args, **kwargs)  # type: ignore[arg-type]
        for name in ("cgroup.subtree_control", "cgroup.procs", "memory.max", "pids.max", "cpu.max"):
            (self / name).touch()

    monkeypatch.setattr(Path, "mkdir", mkdir)
    return tmp_path


def test_version_2_uses_one_directory(root: Path) -> None:
    """One directory has all three controllers. A kernel without swap accounting is not an error."""
    groups = Cgroups.prepare("abc", root)
    assert {c: groups.enforced_by(c) for c in ("memory", "pids", "cpu")} == dict.fromkeys(
        ("memory", "pids", "cpu"), "cgroup-v2"
    )
    group = groups.of("one")
    group.create(LIMITS)
    group.add(42)
    directory = root / "kernelbroker-abc" / "one"
    assert (root / "kernelbroker-abc/cgroup.subtree_control").read_text() == "+memory +pids +cpu"
    assert (directory / "memory.max").read_text() == "1024"
    assert (directory / "cgroup.procs").read_text() == "42"
    assert not (directory / "memory.swap.max").exists()


def test_oom_kills_are_counted(tmp_path: Path) -> None:
    """Each version has its own file with the count; without a memory controller it is zero."""
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert Cgroup(Version.V2, {"memory": tmp_path}).oom_kills() == 2
    assert Cgroup(Version.V1, {"memory": tmp_path}).oom_kills() == 5
    assert Cgroup(Version.V1, {"pids": tmp_path}).oom_kills() == 0


def test_no_usable_controller_enforces_nothing(tmp_path: Path) -> None:
    """Without a usable controller `enforced_by` returns None."""
    assert Cgroups.prepare("abc", tmp_path).enforced_by("memory") is None
