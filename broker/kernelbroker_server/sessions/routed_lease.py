"""The lease of a session whose template is `auto`: it moves from one pool to another, and keeps its state.

Files go with the workspace. Variables go by a checkpoint, as far as they can be saved and loaded; what is
left is told in the next result.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence

import msgspec
from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.errors import ProtocolError, RequestError
from kernelbroker.protocol.events import Moved, Result
from kernelbroker.protocol.messages import MissingVariable, SessionOptions
from kernelbroker_kernel.contract import PROCESSES_PATH

from ..kernels.channel import ChannelClosed
from ..kernels.transfer import TransferFailed
from ..pool.runner import Pool
from ..pool.warm_sandbox import WarmSandbox
from ..telemetry.events import SessionEmitter
from ..workspaces.checkpoint_store import CheckpointStore
from ..workspaces.store import Workspace
from .lease import Lease
from .restoring import Source
from .routes import Place, Routes
from .saved_state import SavedState
from .saving import save
from .store import EventStore

logger = logging.getLogger(__name__)

_MOVING = ".moving-"
"""The beginning of the names of checkpoints for a move. No client can name them."""
_LIST_S, _LIST_BYTES = 5.0, 4 * 1024**2
_LOST_SANDBOX = MissingVariable(name="<all>", reason="the sandbox had ended before")


class _Process(msgspec.Struct):
    pid: int
    cmd: str


class _Processes(msgspec.Struct):
    processes: list[_Process]


async def _processes(warm: WarmSandbox) -> list[MissingVariable]:
    """What clients have started beside the kernel, and what ends with its sandbox. Never raises."""
    try:
        async with (
            asyncio.timeout(_LIST_S),
            await warm.gateway.request("GET", PROCESSES_PATH) as answered,
        ):
            await answered.answer()
            if answered.status != 200:
                return []
            listed = decode_as(await answered.body(_LIST_BYTES), _Processes).processes
    except (ChannelClosed, TransferFailed, ProtocolError, TimeoutError, OSError) as exc:
        logger.info("the processes of a sandbox could not be listed: %s", exc)
        return []
    ended = "ended with the sandbox that the session left"
    return [
        MissingVariable(name="<process>", reason=f"process {each.pid}, {each.cmd[:100]}, {ended}")
        for each in listed
    ]


class RoutedLease(Lease):
    """A lease that can change its pool.

    Args:
        checkpoints: where variables are saved during a move.
        store: has the records of sessions that sleep.
    """

    def __init__(
        self,
        routes: Routes,
        checkpoints: CheckpointStore,
        store: EventStore,
        session_id: str,
        pool: Pool,
        options: SessionOptions,
        workspace: Workspace,
        tenant: str,
        emit: SessionEmitter,
        source: Source | None = None,
        *,
        key: str,
        adopted: WarmSandbox | None = None,
    ) -> None:
        super().__init__(pool, options, workspace, tenant, emit, source, key=key, adopted=adopted)
        self.routes = self._routes = routes
        self._checkpoints = checkpoints
        self._store = store
        self._session_id = session_id
        self._from: Pool | None = None
        """Where the session was before a move that no result has told."""
        self._left: list[MissingVariable] = []
        self._ended: list[MissingVariable] = []
        """Processes; several have the same name."""

    def prepare(self, place: Place | None, *, is_empty: bool) -> bool:
        if place is None or not self._routes.must_move(self.pool, place):
            return False
        if not is_empty or self._warm is not None:
            return True
        self._go_to(place.pool)
        if self._saved is None:
            self._left.append(_LOST_SANDBOX)
        return False

    async def move_out(self, place: Place) -> None:
        """Save the variables, and give the sandbox back. `wake` gets another one and loads them.

        A failure to save them loses the variables, and is told in the next result.
        """
        source = Source(self._checkpoints, self.tenant, f"{_MOVING}{secrets.token_hex(12)}")
        saved = SavedState(source, self._store, self._session_id)
        warm = self._warm
        assert warm is not None, "there is something to leave"
        try:
            self._ended.extend(await _processes(warm))
            try:
                configured = [*self._options.env, *self._options.secrets]
                missing: Sequence[MissingVariable] = await save(
                    warm, source, self._session_id, configured
                )
            except (RequestError, ChannelClosed, TransferFailed, TimeoutError) as exc:
                reason = str(exc)[:500] or "saving the variables took too long"
                missing = [MissingVariable(name="<all>", reason=reason)]
                await saved.forget()
            else:
                self.keep_saved(saved)
            self._left.extend(missing)
        finally:
            try:
                await self._give_back(warm)
            finally:
                self._go_to(place.pool)

    def tell(self, result: Result, asked: Place | None) -> None:
        """Tell in a result where the cell ran, and of a move before it."""
        spec = self.pool.spec
        result.sandbox = self._routes.kind_of(self.pool, asked.kind if asked else None)
        result.template, result.isolation = spec.template, self.isolation.value
        if self._from is not None:
            # What was not saved cannot be loaded either, and is named by both.
            left = {each.name: each for each in (*self.not_restored, *self._left)}
            result.moved = Moved(
                from_=self._from.spec.template,
                to=spec.template,
                left=[*left.values(), *self._ended],
            )
            self._from = None
            self._left, self._ended = [], []

    def _go_to(self, pool: Pool) -> None:
        self._from = self._from or self.pool
        self.pool = pool
        self.timeout = pool.acquire_timeout
