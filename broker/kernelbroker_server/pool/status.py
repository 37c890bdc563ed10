"""What operators see of a pool."""

from __future__ import annotations

from dataclasses import dataclass


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
