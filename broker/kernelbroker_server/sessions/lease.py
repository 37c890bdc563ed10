"""A session's right to one sandbox: acquired, replaced by a fresh one with the same files, released."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernelbroker.protocol.errors import (
    BadRequest,
    Conflict,
    NotFound,
    TooLarge,
    Unavailable,
)
from kernelbroker.protocol.events import Result
from kernelbroker.protocol.messages import MissingVariable, SandboxLimits, SessionOptions
from kernelbroker_kernel.contract import CONFIGURE_CODE

from ..backends.base import Isolation, SandboxSpec, Usage
from ..cancellation import run_to_completion
from ..kernels.channel import ChannelClosed
from ..pool.runner import Pool
from ..pool.warm_sandbox import WarmSandbox, run_silently
from ..telemetry.events import SandboxLeased, SandboxReplaced, SessionEmitter
from ..workspaces.directory_plans import DirectoryPlan, plan_of
from ..workspaces.quota import Quota
from ..workspaces.store import Workspace
from .kernel_feed import KernelFeed
from .lease_errors import pool_errors, remember
from .process_restoring import has_processes, restore_processes
from .projects import PROJECT_PATH, FindProject
from .restoring import LoadFailed, Source, restore
from .routes import Place, Routes
from .sandbox_limits import change_limits, cut_network
from .saved_state import SavedState

_LOADS = 2
"""How often the saved variables of a sleeping session are loaded if the sandbox fails meanwhile."""


class Lease:
    """The right to at most one sandbox and one workspace, from `acquire` to `release`.

    The calls of `acquire`, `replace` and `release` must not overlap. After one that failed or was
    cancelled, `replace` or `release` follows.

    Attributes:
        workspace: the session's files.
        routes: where its cells can run, if the session's template is `auto`.
        replaced: how often a sandbox was replaced.
        not_restored: what could not be loaded of the checkpoint that the session began with.
        timeout: seconds that an acquisition may take.
        feed: what the kernels of its sandboxes send.
        is_shared: the sandbox and the workspace are those of another session.
        pool, tenant, emit: where its sandboxes come from, for whom, and its telemetry.
    """

    is_shared = False

    def __init__(
        self,
        pool: Pool,
        options: SessionOptions,
        workspace: Workspace,
        tenant: str,
        emit: SessionEmitter,
        source: Source | None = None,
        *,
        key: str,
        adopted: WarmSandbox | None = None,
        project: FindProject | None = None,
    ) -> None:
        """Args:
        key: the session's key in the store.
        project: finds the directory of the host that is mounted in its sandboxes.
        adopted: the sandbox that the session has had since an earlier broker.
        """
        self.workspace = workspace
        self.routes: Routes | None = None
        self.feed = KernelFeed()
        self.replaced = 0
        self.not_restored: Sequence[MissingVariable] = ()
        self.timeout = pool.acquire_timeout
        self.pool = pool
        self._options = options
        self.tenant = tenant
        self.emit = emit
        self._source = source
        self._saved: SavedState | None = None
        self._failed_loads = 0
        self._key = key
        self._adopted = adopted
        self._project = project
        self._warm: WarmSandbox | None = None

    @property
    def spec(self) -> SandboxSpec:
        """The specification of its sandboxes."""
        return self.pool.spec

    @property
    def quota(self) -> Quota:
        """What the workspace may hold: the limit of the template, or a lower one of the workspace."""
        return Quota.of(self.spec.limits).lowered_to(self.workspace.max_size)

    @property
    def isolation(self) -> Isolation:
        """The isolation of its sandboxes."""
        return self.pool.backend.isolation

    @property
    def why_no_process_checkpoints(self) -> str:
        """Why the processes of its sandboxes cannot be saved and restored; empty if they can."""
        return self.pool.backend.why_no_process_checkpoints(self.spec)

    @property
    def sandbox_spec(self) -> SandboxSpec:
        """The specification of the present sandbox, as far as the backend can fulfil it."""
        return self.pool.spec if self._warm is None else self._warm.sandbox.spec

    @property
    def current(self) -> WarmSandbox | None:
        """The sandbox, dead or alive; None while it is being replaced."""
        return self._warm

    @property
    def alive(self) -> WarmSandbox | None:
        """The sandbox; None if there is no living one."""
        return self._warm if self._warm is not None and self._warm.alive else None

    async def usage(self, max_files: int) -> Usage | None:
        """Return the workspace usage, counting at most `max_files` inodes.

        None without a sandbox, and if it is unknown.
        """
        if (warm := self._warm) is None:
            return None
        usage = await warm.sandbox.usage(max_files)
        return usage if usage.known and warm is self._warm else None

    async def acquire(self) -> None:
        """Get the first sandbox.

        Raises:
            TooManyRequests, Unavailable: no sandbox is available.
            BadRequest: the kernel refused the session's `env` or `cwd`.
            NotFound, Conflict, TooLarge: its checkpoint cannot be loaded.
        """
        self._warm, self._adopted = self._adopted, None
        if self._warm is not None:
            await self._limit(self._warm)
        else:
            plan = plan_of(self._options.layout)
            self._warm = await self._acquire(urgent=False, source=self._source, plan=plan)
        self.feed.connect(self._warm.channel)

    async def replace(self, cause: str) -> None:
        """Get a fresh sandbox with the files of the old one. Raises the same errors as `acquire`.

        The old one is given back first, since the new one may need its place in the pool. If there is
        no new one, the workspace keeps the files for the next call.

        Args:
            cause: the reason, for telemetry.
        """
        self.feed.disconnect(lost=True)
        await self._forget_saved()
        self.not_restored = ()
        if self._warm is not None:
            self.replaced += 1
            self.emit(SandboxReplaced, cause)
            await self._give_back(self._warm)
        self._warm = warm = await self._acquire(urgent=True)
        self.feed.connect(warm.channel)

    async def suspend(self) -> None:
        """Give the sandbox back. `wake` loads the saved variables in another one."""
        self.feed.disconnect(lost=False)
        if self._warm is not None:
            await self._give_back(self._warm)

    def keep_saved(self, saved: SavedState | None) -> None:
        """Set the saved variables; None leaves them to a later broker."""
        self._saved = saved

    async def wake(self) -> None:
        """Get a sandbox with the files and the saved variables.

        Variables that cannot be loaded are lost, and `not_restored` lists them. If there is no sandbox,
        the next call tries again. Raises as `acquire`.
        """
        if self._saved is None:  # it moves, and nothing could be saved
            self._warm = await self._acquire(urgent=True)
            return
        try:
            self._warm = await self._acquire(urgent=True, source=self._saved.source)
        except (BadRequest, Conflict, NotFound, TooLarge) as exc:
            await self._wake_without(exc.message)
        except LoadFailed as exc:
            self._failed_loads += 1
            if self._failed_loads < _LOADS:
                raise
            await self._wake_without(exc.message)
        self._failed_loads = 0
        await self._forget_saved()
        if self._warm is not None:
            self.feed.connect(self._warm.channel)

    async def _wake_without(self, reason: str) -> None:
        self.feed.disconnect(lost=True)
        self._warm = await self._acquire(urgent=True)
        self.not_restored = [MissingVariable(name="<all>", reason=reason)]

    async def _forget_saved(self) -> None:
        saved, self._saved = self._saved, None
        if saved is not None:
            await run_to_completion(saved.forget())

    def prepare(self, place: Place | None, *, is_empty: bool) -> bool:  # noqa: ARG002
        """Prepare for a cell. Returns whether `move_out` must come before it.

        Args:
            place: where the cell runs; None for anywhere.
            is_empty: there is no sandbox, and none is being acquired.
        """
        return False

    async def move_out(self, place: Place) -> None:
        """Leave the sandbox for a place."""
        raise NotImplementedError("only a session that is routed moves")

    def tell(self, result: Result, asked: Place | None) -> None:
        """Tell in a result where the cell ran, if the session is routed."""

    def leave(self) -> None:
        """Announce `release`, so that the next session waits for the workspace."""
        self.feed.end()
        self.workspace.leave()

    def hand_over(self) -> None:
        """Give the workspace to the next broker; see `Workspace.hand_over`."""
        self.workspace.hand_over()

    async def release(self) -> None:
        """Give sandbox and workspace back, even if the caller is cancelled. A second call does nothing."""
        self.leave()
        try:
            if self._warm is not None and self.workspace.is_stored:
                await self._give_back(self._warm)
        finally:
            if self._warm is not None:  # its files are not needed any more
                self.pool.release(self._warm)
                self._warm = None
            self.workspace.release()
            await self._forget_saved()

    async def _give_back(self, warm: WarmSandbox) -> None:
        self._warm = None
        try:
            await self.workspace.detach(warm.sandbox)
        finally:
            self.pool.release(warm)

    async def _acquire(
        self, *, urgent: bool, source: Source | None = None, plan: DirectoryPlan | None = None
    ) -> WarmSandbox:
        asked_at = time.monotonic()
        with pool_errors(self.timeout):
            warm = await self._from_pool(urgent)
        self.emit(SandboxLeased, warm.sandbox.id, time.monotonic() - asked_at)
        try:
            remember(warm, self._key)  # from now on it is no longer unused
            if self._options.limits.network is not None:  # before a checkpoint's code runs
                await cut_network(warm, self.isolation)
            await self.workspace.attach(warm.sandbox)
            if source is not None and await has_processes(source):
                await restore_processes(warm, source, self.why_no_process_checkpoints)
                if (
                    self._saved is None
                ):  # otherwise they have all that they had when they fell asleep
                    await self._configure(warm)
            else:
                await self._configure(warm)
                if source is not None:
                    has_cwd = self._options.cwd is not None
                    self.not_restored = await restore(warm, source, has_cwd=has_cwd)
            if plan is not None:
                layout = {"directories": plan.directories, "files": plan.files}
                await self._deliver(warm, {"layout": layout})
            await self._limit(warm)
            remember(warm, self._key, is_ready=True)
        except BaseException:
            try:
                if self.workspace.is_stored:
                    await self.workspace.detach(warm.sandbox)
            finally:
                self.pool.release(warm)
            raise
        return warm

    async def _from_pool(self, urgent: bool) -> WarmSandbox:
        if self._project is None:
            return await self.pool.acquire(timeout=self.timeout, tenant=self.tenant, urgent=urgent)
        spec = replace(self.pool.spec, project=await self._project())
        return await self.pool.acquire_own(
            spec, timeout=self.timeout, tenant=self.tenant, urgent=urgent
        )

    async def _limit(self, warm: WarmSandbox) -> None:
        """Apply the limits of the session, also those that change meanwhile."""
        applied = None
        while applied is not self._options.limits:
            applied = self._options.limits
            await change_limits(warm, self.isolation, applied, applied)
            if applied.cpus or applied.memory:
                told = {"cpus": applied.cpus, "memory": applied.memory}
                await self._deliver(warm, {"limits": told})

    async def change_limits(self, limits: SandboxLimits) -> None:
        """Change the limits of the session. Raises BadRequest, Unavailable; they are as before then."""
        await change_limits(self.alive, self.isolation, self._options.limits, limits)
        self._options.limits = limits

    async def _configure(self, warm: WarmSandbox) -> None:
        """Deliver the session's environment and working directory."""
        env = {**self._options.env, **self._options.secrets}
        if self._options.project is not None:
            env = {"PROJECT_PATH": PROJECT_PATH, "SANDBOX_ID": warm.sandbox.id, **env}
        if env or self._options.cwd is not None:
            await self._deliver(warm, {"env": env, "cwd": self._options.cwd})

    async def _deliver(self, warm: WarmSandbox, settings: dict[str, Any]) -> None:
        """Deliver settings of the session; see `CONFIGURE_CODE`."""
        asked = {"configure": settings}
        try:
            async with asyncio.timeout(self.timeout):
                await run_silently(warm, CONFIGURE_CODE, asked, on_error=BadRequest)
        except ChannelClosed as exc:
            raise Unavailable(
                f"the sandbox ended at once: {exc}; try again", retry_after=1
            ) from exc
        except TimeoutError:
            raise Unavailable("a fresh sandbox did not answer; try again", retry_after=1) from None
