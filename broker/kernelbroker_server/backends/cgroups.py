"""Control groups limit the memory, the processes and the CPU time of one sandbox.

Version 1 and version 2 are supported. Each broker makes a directory `kernelbroker-<broker id>` with a
group for each sandbox: below the broker's own group in version 2, at the top of each controller in
version 1. A controller that is missing or read-only is not used; `local.py` decides what replaces it.
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

from .base import CPU_PERIOD_US, Limits

log = logging.getLogger(__name__)

ROOT = Path("/sys/fs/cgroup")
_PREFIX = "kernelbroker-"
_CONTROLLERS = ("memory", "pids", "cpu")
_RMDIR_TRIES, _RMDIR_PAUSE_S = 50, 0.02


class Version(enum.StrEnum):
    V1 = "cgroup-v1"
    V2 = "cgroup-v2"


def settings(version: Version, controller: str, limits: Limits) -> dict[str, str]:
    """The files of one controller and their values, in the order in which they must be written.

    The limit of memory includes swap. `memory.oom.group` stays off, so that the kernel of Linux kills
    only the process that uses too much memory; the Jupyter kernel keeps its state.
    """
    if controller == "pids":
        return {"pids.max": str(limits.processes)}
    if version is Version.V2:
        if controller == "memory":
            return {"memory.max": str(limits.memory), "memory.swap.max": "0"}
        return {"cpu.max": f"{limits.cpu_quota} {CPU_PERIOD_US}"}
    if controller == "memory":
        size = str(limits.memory)
        return {"memory.limit_in_bytes": size, "memory.memsw.limit_in_bytes": size}
    return {"cpu.cfs_period_us": str(CPU_PERIOD_US), "cpu.cfs_quota_us": str(limits.cpu_quota)}


def memory_in_use(usage: int, stat: Mapping[str, int]) -> int:
    """Bytes in use without the page cache, from a group's `memory.stat`.

    Version 1 prefixes the sums over a subtree with `total_`.
    """
    kinds = ("active_file", "inactive_file")
    return usage - sum(stat.get(f"total_{kind}", stat.get(kind, 0)) for kind in kinds)


class Cgroup:
    """The groups of one sandbox: one directory in version 2, one for each controller in version 1."""

    def __init__(self, version: Version, directories: Mapping[str, Path]) -> None:
        self._version = version
        self._directories = directories

    def create(self, limits: Limits) -> None:
        """Make the groups and set the limits. Call `remove` if this raises OSError."""
        for controller, directory in self._directories.items():
            directory.mkdir(exist_ok=True)
            for name, value in settings(self._version, controller, limits).items():
                with contextlib.suppress(FileNotFoundError):  # without swap accounting
                    _write(directory / name, value)

    def change(self, limits: Limits) -> None:
        """Change the limits of memory and processors, as far as there are controllers. Raises OSError."""
        for controller in ("memory", "cpu"):
            if (directory := self._directories.get(controller)) is None:
                continue
            files = list(settings(self._version, controller, limits).items())
            is_v1_memory = controller == "memory" and self._version is Version.V1
            if is_v1_memory and limits.memory > int((directory / files[0][0]).read_text()):
                files.reverse()  # the limit with swap is never less than the one without
            for name, value in files:
                with contextlib.suppress(FileNotFoundError):  # without swap accounting
                    _write(directory / name, value)

    def add(self, pid: int) -> None:
        for directory in set(self._directories.values()):
            _write(directory / "cgroup.procs", str(pid))

    def oom_kills(self) -> int:
        """The number of processes that the kernel killed because memory ran out."""
        if (directory := self._directories.get("memory")) is None:
            return 0
        name = "memory.events" if self._version is Version.V2 else "memory.oom_control"
        lines = (directory / name).read_text().splitlines()
        return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

    def memory(self) -> int | None:
        """Bytes in use without the page cache; None without a memory controller. Raises OSError."""
        if (directory := self._directories.get("memory")) is None:
            return None
        name = "memory.current" if self._version is Version.V2 else "memory.usage_in_bytes"
        usage = int((directory / name).read_text())
        lines = (directory / "memory.stat").read_text().splitlines()
        return memory_in_use(usage, {key: int(value) for key, value in map(str.split, lines)})

    async def remove(self) -> None:
        """Kill the processes in the groups and remove the groups; log a warning if that takes over 1 s."""
        for directory in set(self._directories.values()):
            await _remove(directory)


@dataclass(frozen=True, slots=True)
class Cgroups:
    """This broker's directory of groups, by controller; empty if no controller can be used."""

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
                (root / controller / name).mkdir(exist_ok=True)
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
        """Remove the groups of a dead broker."""
        for directory in _directories_of(broker_id, root):
            await _remove_all(directory)


def _own_group(root: Path) -> Path:
    """The group of this process, in version 2."""
    lines = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in lines if line.startswith("0::")), "/")
    path = root / own.lstrip("/")
    # An earlier broker may have moved this process (see _prepare_v2). In a cgroup namespace the path may
    # be one of the host, which does not exist here.
    path = path.parent if path.name == _PREFIX + "brokers" else path
    return path if path.is_dir() else root


def _prepare_v2(base: Path, name: str) -> dict[str, Path]:
    """Make a directory with all available controllers enabled; returns it for each of them."""
    try:
        available = (base / "cgroup.controllers").read_text().split()
        wanted = [controller for controller in _CONTROLLERS if controller in available]
        enable = " ".join(f"+{controller}" for controller in wanted)
        try:
            _write(base / "cgroup.subtree_control", enable)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # A group that has processes cannot enable controllers: move the processes to a child group.
            (base / (_PREFIX + "brokers")).mkdir(exist_ok=True)
            for pid in (base / "cgroup.procs").read_text().split():
                _write(base / (_PREFIX + "brokers") / "cgroup.procs", pid)
            _write(base / "cgroup.subtree_control", enable)
        (base / name).mkdir(exist_ok=True)
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
    """Remove a group. Retries while it is busy: a dead process leaves its group with a delay."""
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
    # Path.write_text would create a missing file, in the directory of a test.
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, value.encode())
    finally:
        os.close(fd)
