"""A session's lease: its sandbox, the replacement of one that is lost, and the files in between."""

from __future__ import annotations

import asyncio

from kernelbroker.protocol.errors import BadRequest, TooManyRequests, Unavailable
from kernelbroker.protocol.messages import SessionOptions
from kernelbroker_kernel.contract import CONFIGURE_CODE

from ..kernels.client import ChannelClosed
from ..pool.runner import AcquireTimeout, Pool, PoolClosed
from ..pool.state import PoolFull
from ..pool.warm import WarmSandbox, run_silently
from .workspace import HeldFiles


class Lease:
    """From `acquire` to `release` there is one sandbox at most, and one set of files.

    Attributes:
        replaced: how often the sandbox was replaced.
        state_lost: it was, and no execution has told yet.
    """

    def __init__(self, pool: Pool, options: SessionOptions) -> None:
        self.replaced = 0
        self.state_lost = False
        self._pool = pool
        self._options = options
        self._held = HeldFiles()
        self._warm: WarmSandbox | None = None

    async def acquire(self) -> None:
        """Get the first sandbox.

        Raises:
            TooManyRequests, Unavailable: there is none to be had.
            BadRequest: the kernel refused the session's `env` or `cwd`.
        """
        self._warm = await self._acquire(urgent=False)

    async def living(self) -> WarmSandbox:
        """The sandbox, or a fresh one in the place of one that died. Raises as `acquire` does."""
        if self._warm is None or not self._warm.alive:
            return await self.replace()
        return self._warm

    async def replace(self) -> WarmSandbox:
        """A fresh sandbox, with the files of the old one. Raises as `acquire` does.

        The old one is given back first: it may be the one whose place the new one takes. If there
        is none to be had, the files wait for the next try.
        """
        self.state_lost = True
        if self._warm is not None:
            self.replaced += 1
            self._held.take(self._warm.sandbox.workspace)
            self._give_back()
        warm = await self._acquire(urgent=True)
        self._held.give(warm.sandbox.workspace)
        self._warm = warm
        return warm

    async def release(self) -> None:
        """Give everything back; calling it twice does no harm."""
        self._give_back()
        await self._held.discard()

    def _give_back(self) -> None:
        if self._warm is not None:
            warm, self._warm = self._warm, None
            self._pool.release(warm)

    async def _acquire(self, *, urgent: bool) -> WarmSandbox:
        timeout = self._pool.acquire_timeout
        try:
            warm = await self._pool.acquire(timeout=timeout, urgent=urgent)
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
        try:
            if self._options.env or self._options.cwd is not None:
                asked = {"configure": {"env": self._options.env, "cwd": self._options.cwd}}
                async with asyncio.timeout(timeout):
                    await run_silently(warm, CONFIGURE_CODE, asked, on_error=BadRequest)
        except ChannelClosed as exc:
            self._pool.release(warm)
            raise Unavailable(f"the sandbox ended at once: {exc}", retry_after=1) from exc
        except TimeoutError:
            self._pool.release(warm)
            raise Unavailable("a fresh sandbox did not answer", retry_after=1) from None
        except BaseException:
            self._pool.release(warm)
            raise
        return warm
