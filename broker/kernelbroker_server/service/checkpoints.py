"""Use cases of checkpoints: save a session, list and delete checkpoints, fork a session.

A session is opened from a checkpoint by `SessionOptions.from_checkpoint`.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime

import msgspec
from kernelbroker.protocol.errors import Conflict, NotFound, TooLarge, Unavailable
from kernelbroker.protocol.messages import (
    CheckpointInfo,
    CheckpointRequest,
    ForkOptions,
    MissingVariable,
    SavedVariable,
    SessionOptions,
)
from kernelbroker_kernel.contract import EXPORTS_PATH

from ..cancellation import run_to_completion
from ..kernels.transfer import GatewayRequest, TransferFailed
from ..sessions.process_restoring import PROCESS
from ..sessions.projects import project_of
from ..sessions.registry import Registry
from ..sessions.session import Session
from ..workspaces.checkpoint_store import FOR_ONE_USE, CheckpointStore
from .executions import Executions
from .file_operations import file_operation
from .internal_cells import Answer, answered

logger = logging.getLogger(__name__)

_FORK_S = 3600.0
"""How long such a checkpoint is kept at most, if the broker dies meanwhile."""


class _Report(msgspec.Struct):
    variables: list[SavedVariable] = []
    dropped: int = 0
    missing: list[MissingVariable] = []
    env: list[str] = []
    python: str = ""


class _Saved(Answer):
    saved: _Report | None = None


class Checkpoints:
    """The checkpoints of one tenant."""

    def __init__(self, registry: Registry, executions: Executions, store: CheckpointStore) -> None:
        self._registry = registry
        self._executions = executions
        self._store = store
        self._tenant = registry.tenant.name

    async def save(self, session: Session, request: CheckpointRequest) -> CheckpointInfo:
        """Save a session's variables and files, after the cells that were queued before; or its processes.

        Raises:
            SessionGone, TooManyRequests, Unavailable: as other requests that wait for their turn.
            TooLarge: the checkpoint, or all of the tenant, would be too large.
            Conflict: the sandbox cannot make checkpoints, or not of processes, or a cell runs that would
                be saved with them.
        """
        info = _info(session, request.name, request.mode)
        if request.mode == PROCESS:
            return await self._save_processes(session, info)
        return await self._save(session, info)

    async def list(self) -> list[CheckpointInfo]:
        """Return the checkpoints, oldest first."""
        found = await self._store.list(self._tenant)
        return [info for info in found if not info.name.startswith(FOR_ONE_USE)]

    async def get(self, name: str) -> CheckpointInfo:
        """Return a checkpoint. Raises NotFound."""
        return await self._store.get(self._tenant, name)

    async def delete(self, name: str) -> None:
        """Delete a checkpoint. Raises NotFound."""
        await self._store.delete(self._tenant, name)

    async def fork(self, session: Session, options: ForkOptions) -> Session:
        """Open a session with the variables and a copy of the files of another one.

        Raises:
            as `save` and `Sessions.open`.
        """
        if any(each.id == options.session_id for each in self._registry.list()):
            raise Conflict(f"session {options.session_id} is open; choose another session_id")
        name = f"{FOR_ONE_USE}fork-{secrets.token_hex(12)}"
        await self._save_for_fork(session, name, options)
        try:
            fork, _ = await self._registry.open(_options(session, options, name))
            fork.options.from_checkpoint = None
            return fork
        finally:
            with contextlib.suppress(NotFound):
                await run_to_completion(self._store.delete(self._tenant, name))

    async def _save_for_fork(self, session: Session, name: str, options: ForkOptions) -> None:
        """Save the processes if they can be saved, unless `options` ask for something else."""
        stays = options.template in (None, session.options.template)
        by_default = options.mode is None and stays and not session.why_no_process_checkpoints
        if by_default or options.mode == PROCESS:
            try:
                await self._save_processes(
                    session, _info(session, name, PROCESS), retention=_FORK_S
                )
                return
            except Conflict as exc:
                if not by_default:
                    raise
                logger.info("session %s is forked by its values: %s", session.id, exc.message)
        await self._save(session, _info(session, name), retention=_FORK_S)

    async def save_for_sleep(self, session: Session, name: str, retention: float) -> CheckpointInfo:
        """Save the variables, without the files, for the session itself. Raises as `save`."""
        info = _info(session, name, mode="sleep")
        return await self._save(session, info, files=False, retention=retention)

    async def sleep_as_it_is(
        self, session: Session, name: str, retention: float, fall_asleep: Callable[[], bool]
    ) -> None:
        """Save the processes, without the workspace, for the session itself.

        Args:
            fall_asleep: called when they are saved, while they stand still.

        Raises:
            as `save`.
        """
        await self._save_processes(
            session, _info(session, name, PROCESS), False, retention, fall_asleep
        )

    async def _save_processes(
        self,
        session: Session,
        info: CheckpointInfo,
        files: bool = True,
        retention: float | None = None,
        fall_asleep: Callable[[], bool] | None = None,
    ) -> CheckpointInfo:
        with file_operation(session, "checkpoint", info.name) as progress:
            limit = self._store.limits.size
            if ((await session.memory()) or 0) > limit:
                raise TooLarge(
                    f"a checkpoint has at most {limit:,} bytes; the session uses more memory"
                )

            async def store(stream: AsyncIterator[bytes]) -> CheckpointInfo:
                return await self._store.save(self._tenant, info, stream, retention)

            saved = await session.save_processes(store, files=files, fall_asleep=fall_asleep)
            progress.size = saved.size
            return saved

    async def _save(
        self,
        session: Session,
        info: CheckpointInfo,
        *,
        files: bool = True,
        retention: float | None = None,
    ) -> CheckpointInfo:
        ticket = secrets.token_hex(16)
        configured = [*session.options.env, *session.options.secrets]
        asked = {
            "save": {
                "ticket": ticket,
                "max_bytes": self._store.limits.size,
                "files": files,
                "configured": configured,
            }
        }
        with file_operation(session, "checkpoint", info.name) as progress:
            async with answered(self._executions, session, asked, _Saved) as answer:
                if (report := answer.saved) is None:
                    raise Unavailable("the kernel sent an invalid answer; restart the session")
                info = msgspec.structs.replace(
                    info, complete=not report.missing, **msgspec.structs.asdict(report)
                )
                async with (
                    session.borrow() as gateway,
                    await gateway.request("GET", f"{EXPORTS_PATH}/{ticket}") as exchange,
                ):
                    data = _received(exchange)
                    info = await self._store.save(self._tenant, info, data, retention)
                    progress.size = exchange.received
                    return info


async def _received(exchange: GatewayRequest) -> AsyncIterator[bytes]:
    await exchange.answer()
    if exchange.status != 200:
        raise TransferFailed(f"the sandbox answered with status {exchange.status}")
    async for chunk in exchange.chunks():
        yield chunk


def _info(session: Session, name: str, mode: str = "values") -> CheckpointInfo:
    """The description of a checkpoint before it is made."""
    return CheckpointInfo(
        name=name,
        mode=mode,
        size=0,
        created_at=datetime.now(UTC),
        session_id=session.id,
        template=session.options.template,
        python="",
        complete=True,
    )


def _options(session: Session, asked: ForkOptions, checkpoint: str) -> SessionOptions:
    """The options of a fork: those of the session, unless others are asked for."""
    of = session.options
    return SessionOptions(
        session_id=asked.session_id,
        template=asked.template or of.template,
        workspace=asked.workspace,
        workspace_retention=(
            of.workspace_retention
            if asked.workspace_retention is None
            else asked.workspace_retention
        ),
        env=of.env,
        secrets=of.secrets,
        metadata=of.metadata if asked.metadata is None else asked.metadata,
        idle_timeout=asked.idle_timeout or session.idle_timeout,
        max_lifetime=asked.max_lifetime or session.max_lifetime,
        from_checkpoint=checkpoint,
        limits=of.limits,
        # A project of the host is mounted again. A clone is part of the files.
        project=of.project if (project := project_of(of)) and project.path else None,
    )
