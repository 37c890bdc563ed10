"""Control groups: what is written, and version 2 upon a directory that stands for it.

The real thing, of the version that the machine has, is in test_local.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelbroker_server.backends import cgroups
from kernelbroker_server.backends.base import Limits
from kernelbroker_server.backends.cgroups import Cgroup, Cgroups, Version, settings

LIMITS = Limits(cpus=1.5, memory=1024, processes=7)


def test_settings() -> None:
    """Each limit becomes the files of its version; swap is not a way around memory's."""
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
    """A directory with the files that the kernel would give the broker's own group of version 2."""
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


def test_version_2(root: Path) -> None:
    """One directory holds all three controllers, and a kernel without swap accounting is no error."""
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


def test_oom_kills(tmp_path: Path) -> None:
    """The count is read from the file of each version, and is zero without a memory controller."""
    (tmp_path / "memory.events").write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    (tmp_path / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    assert Cgroup(Version.V2, {"memory": tmp_path}).oom_kills() == 2
    assert Cgroup(Version.V1, {"memory": tmp_path}).oom_kills() == 5
    assert Cgroup(Version.V1, {"pids": tmp_path}).oom_kills() == 0


def test_none(tmp_path: Path) -> None:
    """Where no controller can be used, none is said to enforce anything."""
    assert Cgroups.prepare("abc", tmp_path).enforced_by("memory") is None
