"""Control groups: memory, processes and CPU of one sandbox, held to its limits by the kernel.

Both versions are used where they are writable. One directory of ours, `kernelbroker-<broker id>`,
holds a group for each sandbox: in version 2 below the broker's own group, in version 1 at the top
of each controller. A controller that is missing or read-only is left out; what then stands in is
the backend's business.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import logging
import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from .base import Limits

log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
_PREFIX = "kernelbroker-"
_CONTROLLERS = ("memory", "pids", "cpu")
_CPU_PERIOD_US = 100_000
_RMDIR_TRIES, _RMDIR_PAUSE_S = 50, 0.02


class Version(enum.StrEnum):
    V1 = "cgroup-v1"
    V2 = "cgroup-v2"


def settings(version: Version, controller: str, limits: Limits) -> dict[str, str]:
    """The files of one controller and what to write to them, in this order.

    Swap is denied, where it is accounted for: else the limit of memory would only be one of RAM.
    Memory's `oom.group` is left off: a child process that takes too much dies alone, and the kernel
    with its state lives on.
    """
    quota = max(1000, int(limits.cpus * _CPU_PERIOD_US))  # the kernel takes no less than 1 ms
    if controller == "pids":
        return {"pids.max": str(limits.processes)}
    if version is Version.V2:
        if controller == "memory":
            return {"memory.max": str(limits.memory), "memory.swap.max": "0"}
        return {"cpu.max": f"{quota} {_CPU_PERIOD_US}"}
    if controller == "memory":
        size = str(limits.memory)
        return {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
    return {"cpu.cfs_period_us": str(_CPU_PERIOD_US), "cpu.cfs_quota_us": str(quota)}


def memory_in_use(usage: int, stat: Mapping[str, int]) -> int:
    """Bytes in use without the files' pages that are merely cached, from a group's `memory.stat`.

    Version 1 has the sums over a whole subtree under names of their own.
    """
    kinds = ("active_file", "inactive_file")
    return usage - sum(stat.get(f"total_{kind}", stat.get(kind, 0)) for kind in kinds)


class Cgroup:
    """The groups of one sandbox: one directory in version 2, one a controller in version 1."""

    def __init__(self, version: Version, directories: Mapping[str, Path]) -> None:
        self._version = version
        self._directories = directories

    def create(self, limits: Limits) -> None:
        """Raises OSError; then `remove` what was made."""
        for controller, directory in self._directories.items():
            directory.mkdir(exist_ok=True)
            for name, value in settings(self._version, controller, limits).items():
                with contextlib.suppress(FileNotFoundError):  # accounting of swap may be off
                    _write(directory / name, value)

    def add(self, pid: int) -> None:
        for directory in set(self._directories.values()):
            _write(directory / "cgroup.procs", str(pid))

    def oom_kills(self) -> int:
        """How many of its processes the kernel has ended for want of memory."""
        if (directory := self._directories.get("memory")) is None:
            return 0
        name = "memory.events" if self._version is Version.V2 else "memory.oom_control"
        lines = (directory / name).read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def memory(self) -> int | None:
        """Bytes in use, as `memory_in_use`; None where memory is not accounted for. Raises OSError."""
        if (directory := self._directories.get("memory")) is None:
            return None
        name = "memory.current" if self._version is Version.V2 else "memory.usage_in_bytes"
        usage = int((directory / name).read_text())
        lines = (directory / "memory.stat").read_text().splitlines()
        return memory_in_use(usage, {key: int(value) for key, value in map(str.split, lines)})

    async def remove(self) -> None:
        """End what still runs in it, and remove it; gives up, with a warning, after a second."""
        for directory in set(self._directories.values()):
            await _remove(directory)


@dataclass(frozen=True, slots=True)
class Cgroups:
    """Where this broker's groups lie, by controller; empty where none can be used."""

    version: Version
    parents: Mapping[str, Path]

    @classmethod
    def prepare(cls, broker_id: str, root: Path = ROOT) -> Cgroups:
        """Find the controllers that can be used, and make this broker's directory in each."""
        name = _PREFIX + broker_id
        if (root / "cgroup.controllers").exists():
            return cls(Version.V2, _prepare_v2(_own_group(root), name))
        parents = {}
        for controller in _CONTROLLERS:
            with contextlib.suppress(OSError):
                (root / controller / name).mkdir()
                parents[controller] = root / controller / name
        return cls(Version.V1, parents)

    def of(self, sandbox_id: str) -> Cgroup:
        return Cgroup(self.version, {c: path / sandbox_id for c, path in self.parents.items()})

    def enforced_by(self, controller: str) -> str | None:
        return self.version.value if controller in self.parents else None

    async def remove(self) -> None:
        for directory in set(self.parents.values()):
            await _remove_all(directory)

    @staticmethod
    async def reap(broker_id: str, root: Path = ROOT) -> None:
        """Remove what a broker that is dead has left behind."""
        for directory in _directories_of(broker_id, root):
            await _remove_all(directory)


def _own_group(root: Path) -> Path:
    """The group that this process is in, in version 2."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    path = root / own.lstrip("/")
    # A broker may have moved us before. A path as seen from outside our namespace is of no use.
    path = path.parent if path.name == _PREFIX + "brokers" else path
    return path if path.is_dir() else root


def _prepare_v2(base: Path, name: str) -> dict[str, Path]:
    """Hand the controllers down to a directory of ours; returns those that arrive there."""
    try:
        available = (base / "cgroup.controllers").read_text().split()
        wanted = [controller for controller in _CONTROLLERS if controller in available]
        enable = " ".join(f"+{controller}" for controller in wanted)
        try:
            _write(base / "cgroup.subtree_control", enable)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # Groups with processes hand nothing down, so these move to a group of their own.
            (base / (_PREFIX + "brokers")).mkdir(exist_ok=True)
            for pid in (base / "cgroup.procs").read_text().split():
                _write(base / (_PREFIX + "brokers") / "cgroup.procs", pid)
            _write(base / "cgroup.subtree_control", enable)
        (base / name).mkdir()
        _write(base / name / "cgroup.subtree_control", enable)
    except OSError as error:
        log.info("Cgroups cannot be used: %s", error)
        return {}
    return dict.fromkeys(wanted, base / name)


def _directories_of(broker_id: str, root: Path) -> Iterator[Path]:
    places = [root / controller for controller in _CONTROLLERS]
    if (root / "cgroup.controllers").exists():
        places = [_own_group(root)]
    for place in places:
        if (directory := place / (_PREFIX + broker_id)).is_dir():
            yield directory


async def _remove_all(directory: Path) -> None:
    for child in _groups_in(directory):
        await _remove(child)
    await _remove(directory)


def _groups_in(directory: Path) -> list[Path]:
    return [path for path in directory.iterdir() if path.is_dir()]


async def _remove(directory: Path) -> None:
    """Retried while it is busy: a process leaves its group a moment after its death is reported."""
    for _ in range(_RMDIR_TRIES):
        try:
            _kill_and_rmdir(directory)
        except FileNotFoundError:
            return
        except OSError as error:
            if error.errno not in (errno.EBUSY, errno.ENODEV):
                log.warning("Could not remove the cgroup %s: %s", directory, error)
                return
            await asyncio.sleep(_RMDIR_PAUSE_S)
        else:
            return
    log.warning("Could not remove the cgroup %s: it stays busy", directory)


def _kill_and_rmdir(directory: Path) -> None:
    for pid in (directory / "cgroup.procs").read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    directory.rmdir()


def _write(path: Path, value: str) -> None:
    # Not Path.write_text: a file that is missing must not be created (in a test's directory).
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
