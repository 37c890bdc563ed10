"""A context's right to one kernel in the sandbox of its session: started, replaced, ended.

A context is a session whose lease shares the sandbox and the workspace of another one. If that sandbox is
replaced, the context's kernel is lost with it, and its next execution starts one in the new sandbox.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from uuid import UUID

from kernelbroker.protocol.errors import BadRequest, Unavailable
from kernelbroker.protocol.messages import SandboxLimits, SessionOptions

from ..backends.base import EndCause, SandboxEnd
from ..backends.exit_reason import end_of
from ..cancellation import run_to_completion
from ..kernels.channel import ChannelClosed
from ..pool.warm_sandbox import WarmSandbox, first_of
from ..telemetry.events import SandboxLeased, SessionEmitter
from ..workspaces.directory_plans import DirectoryPlan
from .borrowing import borrowed_sandbox
from .lease import Lease
from .restoring import Source
from .runner import SessionRunner

_START_S = 60.0
"""How long a kernel may take to start: without a fork server it imports the template's modules."""

_TRY_AGAIN = "try again; the sandbox may also lack memory or processes for it"


@dataclass(frozen=True, slots=True)
class ContextSandbox(WarmSandbox):
    """The sandbox of a session, with the channel to the kernel of one of its contexts."""

    async def end(self) -> SandboxEnd:
        """Wait until the kernel has ended and return why."""
        await first_of(self.sandbox.ended, self.channel.closed)
        if (status := self.channel.exit_status) is not None:
            out_of_memory = self.sandbox.ran_out_of_memory()
            return end_of(status, self.sandbox.spec.limits, out_of_memory, "")
        end = await WarmSandbox.end(self)
        if end.cause is EndCause.OUT_OF_MEMORY:
            return end
        return SandboxEnd(
            EndCause.SANDBOX_LOST, f"the sandbox of its session has ended: {end.detail}"
        )


class ContextLease(Lease):
    """The lease of a context.

    Args:
        runner, lease: of its session.
        options: its own, with the environment of its session.
    """

    is_shared = True

    def __init__(
        self,
        runner: SessionRunner,
        lease: Lease,
        options: SessionOptions,
        emit: SessionEmitter,
        *,
        key: str,
        adopted: WarmSandbox | None = None,
    ) -> None:
        super().__init__(
            lease.pool, options, lease.workspace, lease.tenant, emit, key=key, adopted=adopted
        )
        self._session_runner = runner
        self._session_lease = lease
        self._kernel_id = kernel_id_of(key)

    def leave(self) -> None:
        """The workspace is its session's."""
        self.feed.end()

    def hand_over(self) -> None:
        """The workspace is its session's."""

    async def release(self) -> None:
        """End its kernel, even if the caller is cancelled. A second call does nothing."""
        warm, self._warm = self._warm, None
        if warm is not None:
            await run_to_completion(self._end_kernel(warm))

    async def _limit(self, warm: WarmSandbox) -> None:
        """The session limits the sandbox."""

    async def change_limits(self, limits: SandboxLimits) -> None:  # noqa: ARG002
        raise BadRequest("a context has the limits of its session; change them there")

    async def _give_back(self, warm: WarmSandbox) -> None:
        self._warm = None
        await run_to_completion(self._end_kernel(warm))

    async def _end_kernel(self, warm: WarmSandbox) -> None:
        await warm.channel.close()
        if not warm.sandbox.ended.done():
            await warm.gateway.end_kernel(self._kernel_id)

    async def _acquire(
        self,
        *,
        urgent: bool,  # noqa: ARG002
        source: Source | None = None,  # noqa: ARG002
        plan: DirectoryPlan | None = None,  # noqa: ARG002
    ) -> WarmSandbox:
        """Start a kernel."""
        asked_at = time.monotonic()
        async with borrowed_sandbox(self._session_runner) as session_warm:
            gateway = session_warm.gateway
            try:
                channel = await gateway.start_kernel(_START_S, self._kernel_id)
                await channel.ask_info()
                warm = ContextSandbox(session_warm.sandbox, gateway, channel)
                env = {**self._options.env, **self._options.secrets}
                await self._deliver(warm, {"env": env, "cwd": self._options.cwd})
            except BaseException as exc:
                await run_to_completion(gateway.end_kernel(self._kernel_id))
                if isinstance(exc, ChannelClosed):
                    message = f"the kernel of the context did not start: {exc}; {_TRY_AGAIN}"
                    raise Unavailable(message, retry_after=1) from exc
                raise
        self.emit(SandboxLeased, warm.sandbox.id, time.monotonic() - asked_at)
        return warm


def kernel_id_of(key: str) -> str:
    """The id of a context's kernel, which the next broker knows as well, by the context's key."""
    return str(UUID(hex=f"{key:0<32}"))
