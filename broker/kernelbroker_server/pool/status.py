"""What operators see of a pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..backends.base import Sandbox


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """How many sandboxes there are, and how many callers wait for one.

    Attributes:
        idle_containers: warm and free, including one that is being checked.
    """

    total_containers: int
    idle_containers: int
    busy_containers: int
    starting_containers: int
    pending_requests: int


@dataclass(frozen=True, slots=True)
class PoolSandbox:
    """A sandbox of a pool.

    Attributes:
        state: the value of its `SandboxState`.
        sandbox: None while it starts.
        uptime: seconds since it is warm; None while it starts.
        memory_limit: bytes.
    """

    sandbox_id: str
    template: str
    state: str
    sandbox: Sandbox | None
    uptime: float | None
    memory_limit: int


@dataclass(frozen=True, slots=True)
class WaitingTenant:
    tenant: str
    waiting: int


@dataclass(frozen=True, slots=True)
class Next:
    """What a pool does next: lease this sandbox, or serve this tenant. None if there is none."""

    sandbox: str | None
    tenant: str | None


@dataclass(frozen=True, slots=True)
class PoolQueue:
    """Who waits, in the order in which they are served next.

    Attributes:
        draining: no new session gets a sandbox.
        max_size: sandboxes in any state.
    """

    draining: bool
    max_size: int
    queue: Sequence[WaitingTenant]
    next: Next


@dataclass(frozen=True, slots=True)
class LaunchFailure:
    """Why a pool cannot launch sandboxes at present.

    Attributes:
        reason: of the latest launch that failed.
        since: when the first of these failures was, in seconds since the epoch.
        attempts: launches that failed in a row.
    """

    reason: str
    since: float
    attempts: int


@dataclass(frozen=True, slots=True)
class PoolDetails:
    """Further numbers for operators.

    Attributes:
        max_containers: how many there may be at most.
        spare_containers: how many the pool tries to keep free at present.
        utilization: sandboxes leased or waited for, divided by those leased, free or starting; None if
            callers wait and there is no sandbox.
        last_launch_failure: why the latest launch failed; None if it succeeded.
        failing_since: when launches began to fail, in seconds since the epoch; None if they do not.
        failed_launches: launches that failed in a row.
        back_off_s: seconds until launches are tried again.
    """

    removing_containers: int
    spare_containers: int
    max_containers: int
    utilization: float | None
    last_launch_failure: str | None
    failing_since: float | None
    failed_launches: int
    back_off_s: float
