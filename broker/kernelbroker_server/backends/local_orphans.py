"""The sandboxes that an earlier broker of the same state has left: adopted, or ended and removed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Sequence
from pathlib import Path

from . import procfs, sandbox_record
from .base import Rescue, SandboxSpec
from .cgroups import Cgroups
from .checkpoint_sandbox import GIVEN, CheckpointSandbox
from .criu import Criu
from .directories import Directories, remove_tree
from .local_sandbox import LocalContext, LocalSandbox
from .sandbox_record import SandboxRecord

log = logging.getLogger(__name__)

_END_TRIES, _END_PAUSE_S = 500, 0.02


class LocalOrphans:
    """The directories of sandboxes that are there before this broker has launched any.

    Attributes:
        left: their names, without those that were adopted or removed.
    """

    def __init__(self, context: LocalContext) -> None:
        self._context = context
        self._directory = context.directories.sandboxes
        self.left: set[str] = set()
        with contextlib.suppress(FileNotFoundError):  # a broker that starts is just removing it
            self.left = {path.name for path in self._directory.iterdir()}

    async def remove_probe(self, name: str) -> None:
        """Remove the jail of this name, in which nobody has files."""
        if name in self.left:
            await self._end_processes([name])
            await self._remove(name)

    def adopt(
        self, specs: Sequence[SandboxSpec], criu: Criu | None
    ) -> list[tuple[LocalSandbox, SandboxRecord]]:
        """Adopt those that live, are of one of the specs, and are either unused or all a session's.

        Args:
            criu: if processes can be saved.
        """
        boot, found = sandbox_record.boot_id(), []
        by_digest = {sandbox_record.digest(spec): spec for spec in specs}
        for name in sorted(self.left):
            record = sandbox_record.read(self._directory / name)
            if record is None or record.boot != boot or record.kernel_id is None:
                continue
            if (record.session is not None and not record.is_ready) or record.spec not in by_digest:
                continue
            with contextlib.suppress(OSError):  # it has ended
                sandbox = self._sandbox(name, by_digest[record.spec], record, criu)
                sandbox.adopt(record)
                found.append((sandbox, record))
                self.left.discard(name)
        return found

    async def end(self, rescue: Rescue | None) -> None:
        """End and remove what was not adopted. Without `rescue`, or if it fails, the files stay."""
        names = sorted(self.left)
        await self._end_processes(names)
        if rescue is None or await asyncio.to_thread(rescue, self._context.directories.data):
            for name in names:
                await self._remove(name)

    def _sandbox(
        self, name: str, spec: SandboxSpec, record: SandboxRecord, criu: Criu | None
    ) -> LocalSandbox:
        if self._given(name).is_dir():
            return CheckpointSandbox(name, spec, self._context, record.host_uid, criu)
        return LocalSandbox(name, spec, self._context, record.host_uid)

    def _given(self, name: str) -> Path:
        return self._context.directories.run / f"{name}{GIVEN}"

    async def _end_processes(self, names: Sequence[str]) -> None:
        for _ in range(_END_TRIES):
            pids = [pid for n in names for pid in procfs.started_in(self._directory / n)]
            if not pids:
                return
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            await asyncio.sleep(_END_PAUSE_S)
        log.error("processes of an earlier broker's sandboxes do not end")

    async def _remove(self, name: str) -> None:
        run = self._context.directories.run
        for path in (run / f"{name}.sock", run / f"{name}.out"):
            path.unlink(missing_ok=True)
        if self._given(name).is_dir():
            await remove_tree(self._given(name))
        await self._context.cgroups.of(name).remove()
        if await remove_tree(self._directory / name):
            self.left.discard(name)


async def reap(directories: Directories, cgroup_root: Path, rescue: Rescue | None) -> None:
    """Remove what dead brokers have left, besides these directories."""
    for dead in directories.of_the_dead():
        log.info("Removing the files and processes of the dead broker %s", dead.broker_id)
        for pid in procfs.started_in(dead.sandboxes):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await Cgroups.reap(dead.broker_id, cgroup_root)
        if rescue is None or await asyncio.to_thread(rescue, dead.data):
            await dead.remove()
