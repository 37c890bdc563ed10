"""A sandbox of the `local` backend whose processes can be saved, and replaced by saved ones."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import resource
import socket
from collections.abc import Sequence
from pathlib import Path

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker_kernel.contract import WORKSPACE

from . import checkpoint_jail, jail
from .adopted_jail import AdoptedJail
from .base import LaunchError, SandboxSpec
from .checkpoint_jail import CheckpointJail
from .criu import Criu
from .fork_server import ForkServer
from .jail_contents import FILES
from .local_sandbox import LocalContext, LocalSandbox, rlimits
from .process_saver import CheckpointFailed, ProcessSaver
from .sandbox_layout import gateway_argv
from .sandbox_record import ProcessId, SandboxRecord
from .sockets import Handover, listen

log = logging.getLogger(__name__)

ETC = "etc-checkpoint"
"""The directory of the files of `jail.ETC`, where the sandbox's user has its number on the host."""
KERNEL_FEATURES = "criu.kdat"
GIVEN = ".give"
"""The end of the name of the directory with the socket of the `Handover`."""
_SOCKET = "gateway"
_ARCHIVE, _META = "files.tar", "meta.json"


class _Meta(msgspec.Struct):
    """What belongs to the images.

    Attributes:
        pipes: the names of the pipes to the broker.
        stopped: processes that had been stopped before, by their pids in the jail.
    """

    pipes: list[str]
    stopped: list[int]


class CheckpointSandbox(LocalSandbox, ProcessSaver):
    """Its gateway gets its connections by a `Handover`, so that no socket of the broker stays in it."""

    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        context: LocalContext,
        host_uid: int | None,
        criu: Criu | None = None,
    ) -> None:
        """Args:
        criu: None if it works no more, for a sandbox of an earlier broker.
        """
        assert host_uid is not None, "only root makes them"
        super().__init__(sandbox_id, spec, context, host_uid)
        self.process_saver = None if criu is None else self
        self.images = self._directory / "images"
        self._uid = host_uid
        self._criu = criu
        self._give = context.directories.run / f"{sandbox_id}{GIVEN}"
        self._handover: Handover | None = None
        self._stopped: list[int] = []
        self.ended.add_done_callback(lambda _: self._close_soon())

    async def save_processes(self, images: Path, *, files: bool) -> None:
        assert self._criu is not None
        running = self._jail
        await self._close_handover()
        try:
            meta = _Meta(running.pipes, running.stopped())
            self._stopped = meta.stopped
            await running.save(self._criu, images)
            workspace = (WORKSPACE.strip("/"),) if files else ()
            without = () if self.spec.shared_data is None else (str(jail.SHARED).strip("/"),)
            await running.files.pack(images / _ARCHIVE, (*FILES, *workspace), without)
            (images / _META).write_bytes(msgspec.json.encode(meta))
        except BaseException as error:
            await self.resume()
            if isinstance(error, OSError):
                raise CheckpointFailed(str(error)) from error
            raise

    async def resume(self) -> None:
        try:
            self._hand_over()
            self._jail.go_on(self._stopped)
        except (CheckpointFailed, LaunchError, OSError) as error:
            log.error("Sandbox %s is ended, since it cannot go on: %s", self.id, error)
            await self.kill()

    async def restore_processes(self, images: Path) -> None:
        assert self._criu is not None
        running = self._jail
        try:
            meta = decode_json((images / _META).read_bytes(), _Meta)
            await self._close_handover()
            await running.clear()
            await running.files.unpack(images / _ARCHIVE)
            await running.restore(self._criu, images, meta.pipes)
            if self._record is not None:
                self._record.gateway = ProcessId.of(running.roots[-1])
                self.remember()
            self._hand_over()
            running.go_on(meta.stopped)
        except (OSError, LaunchError, msgspec.MsgspecError) as error:
            raise CheckpointFailed(str(error)) from error

    async def close(self) -> bool:
        if not await super().close():
            return False
        await self._close_handover()
        with contextlib.suppress(OSError):
            self._give.rmdir()
        return True

    def _find_jail(self, record: SandboxRecord) -> CheckpointJail:
        if record.leader is None or record.gateway is None:
            raise ProcessLookupError("its processes are unknown")
        leader = AdoptedJail(record.leader, None)
        running = CheckpointJail.adopt(
            leader, record.gateway, self._uid, self._place, self._cgroup.add
        )
        running.go_on(())  # an earlier broker may have ended while it saved them
        self._hand_over()
        return running

    def leave(self) -> None:
        self._close_soon()

    @property
    def _jail(self) -> CheckpointJail:
        if not isinstance(self._running, CheckpointJail) or self.ended.done():
            raise CheckpointFailed("the sandbox has ended")
        return self._running

    async def _start_jail(
        self,
        command: Sequence[str],
        listener: int,
        server: ForkServer | None,  # noqa: ARG002
    ) -> CheckpointJail:
        context = self._context
        self._give.mkdir()
        self._give.chmod(0o755)  # nobody else on the host gets to it
        self._handover = Handover(
            self._give / _SOCKET, socket.socket(fileno=os.dup(listener)), self._uid
        )
        # It waits without end for the next connection of the broker; the jail ends with the broker.
        listen_at = ("--handover", str(jail.HANDOVER / _SOCKET), "--alone", "inf")
        spec = dataclasses.replace(self.spec, orphan_grace=self.spec.orphan_grace or 1.0)
        return await checkpoint_jail.start(
            context.host,
            self.spec,
            argv=gateway_argv(jail.python_inside(context.host), command, listen_at, spec),
            etc=context.directories.run / ETC,
            workspace=self.workspace,
            paths=jail.CheckpointPaths(self._give, context.directories.run / KERNEL_FEATURES),
            host_uid=self._uid,
            place=self._place,
            join=self._cgroup.add,
        )

    def _place(self, pid: int) -> None:
        self._cgroup.add(pid)
        values = rlimits(self.spec.limits, self._context.isolation)
        # The host counts the processes of all these sandboxes together: they share a user and have no
        # user namespaces. Their control groups limit each.
        del values[resource.RLIMIT_NPROC]
        for kind, value in values.items():
            resource.prlimit(pid, kind, (value, value))

    def _hand_over(self) -> None:
        for path in (self.endpoint.path, self._give / _SOCKET):
            path.unlink(missing_ok=True)
        self._handover = Handover(self._give / _SOCKET, listen(self.endpoint.path), self._uid)

    def _close_soon(self) -> None:
        if self._handover is not None:
            self._handover.close()  # connections that wait in the socket's queue end as well

    async def _close_handover(self) -> None:
        handover, self._handover = self._handover, None
        if handover is not None:
            handover.close()
            await handover.closed()
