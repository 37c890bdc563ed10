"""A session's lease: its sandbox, the replacement of one that is lost, and the files in between."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from kernelbroker.protocol.errors import BadRequest, TooManyRequests, Unavailable
from kernelbroker.protocol.messages import SessionOptions
from kernelbroker_kernel.contract import CONFIGURE_CODE

from ..kernels.client import ChannelClosed
from ..pool.runner import AcquireTimeout, Pool, PoolClosed
from ..pool.state import PoolFull
from ..pool.warm import WarmSandbox, run_silently
from ..telemetry.facts import SandboxLeased, SandboxReplaced, Teller
from .workspace import Workspace

logger = logging.getLogger(__name__)


class Lease:
    """From `acquire` to `release` there is one sandbox at most, and one set of files.

    Attributes:
        replaced: how often the sandbox was replaced.
        timeout: seconds that an acquisition may take.
        spec: what its sandboxes are made by.
        state_lost: it was, and no execution has told yet.
    """

    def __init__(
        self,
        pool: Pool,
        options: SessionOptions,
        workspace: Workspace,
        tenant: str,
        tell: Teller,
    ) -> None:
        self.replaced = 0
        self.state_lost = False
        self._pool = pool
        self.timeout = pool.acquire_timeout
        self.spec = pool.spec
        self._tenant = tenant
        self._options = options
        self._tell = tell
        self._files = workspace
        self._warm: WarmSandbox | None = None

    @property
    def workspace(self) -> Path | None:
        """Where the files are; None while there is no sandbox."""
        return None if self._warm is None else self._warm.sandbox.workspace

    async def acquire(self) -> None:
        """Get the first sandbox. Whatever it raises, `release` is called next.

        Raises:
            TooManyRequests, Unavailable: there is none to be had.
            BadRequest: the kernel refused the session's `env` or `cwd`.
        """
        self._warm = await self._acquire(urgent=False)

    @property
    def alive(self) -> WarmSandbox | None:
        """The sandbox as it is now; None while there is none that lives."""
        return self._warm if self._warm is not None and self._warm.alive else None

    async def living(self) -> WarmSandbox:
        """The sandbox, or a fresh one in the place of one that died. Raises as `acquire` does."""
        if self._warm is None or not self._warm.alive:
            return await self.replace("sandbox_ended")
        return self._warm

    async def replace(self, cause: str) -> WarmSandbox:
        """A fresh sandbox, with the files of the old one. Raises as `acquire` does.

        The old one is given back first: it may be the one whose place the new one takes. If there
        is none to be had, the files wait for the next try.
        """
        self.state_lost = True
        if self._warm is not None:
            self.replaced += 1
            self._tell(SandboxReplaced, cause)
            await self._give_back(self._warm)
        self._warm = await self._acquire(urgent=True)
        return self._warm

    async def release(self) -> None:
        """Give everything back, also if cancelled meanwhile; calling it twice does no harm."""
        warm = self._warm
        try:
            if warm is not None and self._files.kept is not None:
                await self._give_back(warm)
        finally:
            if self._warm is not None:  # whose files nobody will ask for
                self._pool.release(self._warm)
                self._warm = None
            self._files.put_away(None if warm is None else warm.sandbox.ended)

    async def _give_back(self, warm: WarmSandbox) -> None:
        self._warm = None  # from here on nobody begins anything in it
        try:
            await self._take(warm)
        finally:
            self._pool.release(warm)

    async def _acquire(self, *, urgent: bool) -> WarmSandbox:
        timeout, asked_at = self.timeout, time.monotonic()
        try:
            warm = await self._pool.acquire(timeout=timeout, tenant=self._tenant, urgent=urgent)
        except PoolFull:
            raise TooManyRequests(
                "too many sessions are waiting for a sandbox; try again later", retry_after=5
            ) from None
        except AcquireTimeout as exc:
            raise Unavailable(
                f"no sandbox became free within {timeout:g} s ({exc}); "
                "close sessions that are done, or raise pool.max_size",
                retry_after=5,
            ) from None
        except PoolClosed:
            raise Unavailable("the broker is shutting down", retry_after=10) from None
        self._tell(SandboxLeased, warm.sandbox.id, time.monotonic() - asked_at)
        try:
            try:
                await self._files.give(warm.sandbox)
            except OSError as exc:
                raise Unavailable(f"the files cannot be moved: {exc}", retry_after=10) from exc
            options = self._options
            env = {**options.env, **options.secrets}
            if env or options.cwd is not None:
                asked = {"configure": {"env": env, "cwd": options.cwd}}
                async with asyncio.timeout(timeout):
                    await run_silently(warm, CONFIGURE_CODE, asked, on_error=BadRequest)
        except BaseException as exc:
            try:
                if self._files.kept is not None:
                    await self._take(warm)
            finally:
                self._pool.release(warm)
            if isinstance(exc, ChannelClosed):
                raise Unavailable(f"the sandbox ended at once: {exc}", retry_after=1) from exc
            if isinstance(exc, TimeoutError):
                raise Unavailable("a fresh sandbox did not answer", retry_after=1) from None
            raise
        return warm

    async def _take(self, warm: WarmSandbox) -> None:
        """Save the files of a sandbox that is about to go."""
        try:
            await self._files.take(warm.sandbox, mounts=self._pool.spec.shared_data is not None)
        except OSError:
            logger.exception("the files of sandbox %s are lost", warm.sandbox.id)
