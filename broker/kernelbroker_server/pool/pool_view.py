"""What can be read of a pool."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..backends.base import SandboxSpec
from .sandboxes import SandboxState
from .state import PoolState
from .status import (
    LaunchFailure,
    Next,
    PoolDetails,
    PoolQueue,
    PoolSandbox,
    PoolStatus,
    WaitingTenant,
)
from .warm_sandbox import WarmSandbox


class PoolView:
    """The base of `Pool`, which sets the attributes.

    Attributes:
        draining: an operator drains the pool: no new session gets a sandbox.
    """

    spec: SandboxSpec
    draining: bool
    _state: PoolState
    _sandboxes: Mapping[str, WarmSandbox]
    _launch_failure: LaunchFailure | None

    def status(self) -> PoolStatus:
        count = self._state.count
        return PoolStatus(
            total_containers=count(),
            idle_containers=count(SandboxState.IDLE, SandboxState.CHECKING),
            busy_containers=count(SandboxState.LEASED),
            starting_containers=count(SandboxState.STARTING),
            pending_requests=self._state.waiters,
        )

    def details(self) -> PoolDetails:
        state, failure = self._state, self._launch_failure
        return PoolDetails(
            removing_containers=state.count(SandboxState.REMOVING),
            spare_containers=state.spare,
            max_containers=state.limits.max_size,
            utilization=round(state.load, 3) if math.isfinite(state.load) else None,
            last_launch_failure=None if failure is None else failure.reason,
            failing_since=None if failure is None else failure.since,
            failed_launches=state.failures,
            back_off_s=round(state.back_off, 3),
        )

    def queue(self) -> PoolQueue:
        state = self._state
        waiting = [WaitingTenant(tenant, count) for tenant, count in state.order]
        upcoming = Next(state.next_idle, waiting[0].tenant if waiting else None)
        return PoolQueue(self.draining, state.limits.max_size, waiting, upcoming)

    def sandboxes(self) -> Sequence[PoolSandbox]:
        """All sandboxes, the oldest first."""
        found = []
        for name, state, age in self._state.each():
            warm = self._sandboxes.get(name)
            found.append(
                PoolSandbox(
                    name,
                    self.spec.template,
                    state.value,
                    None if warm is None else warm.sandbox,
                    None if math.isnan(age) else age,
                    int(self.spec.limits.memory),
                )
            )
        return found

    @property
    def ready(self) -> bool:
        """Whether it is sensible to open a session.

        That is so if a sandbox is free or in use. If the pool keeps none free, it is so unless launches
        fail at present.
        """
        if self.draining:
            return False
        state = self._state
        warm = state.count(SandboxState.IDLE, SandboxState.CHECKING, SandboxState.LEASED)
        return bool(warm) or not (state.spare or state.back_off)

    async def memory(self) -> int:
        """Return the bytes that all its sandboxes use. What is unknown does not count."""
        used = [await warm.sandbox.memory() for warm in list(self._sandboxes.values())]
        return sum(each or 0 for each in used)

    @property
    def launch_failure(self) -> LaunchFailure | None:
        """Why launches fail; None if the latest one succeeded, or none has ended yet."""
        return self._launch_failure

    @property
    def last_failure(self) -> str:
        """The reason of `launch_failure`; empty if there is none."""
        return "" if self._launch_failure is None else self._launch_failure.reason
