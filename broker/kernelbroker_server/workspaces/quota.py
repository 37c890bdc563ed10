"""The quota of a workspace, and what happens to a session that exceeds it. Does no I/O.

If the workspace exceeds its limit, the running cell is interrupted. If the cell continues to write, it is
aborted and its kernel replaced. The files stay, and later cells run, since they may delete files. If
background code writes while no cell runs, the kernel is replaced once the workspace is far over the limit.
After a cell has written above the ceiling, no further cell runs until files are deleted.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from ..backends.base import Limits, Usage

_SLACK = 64 * 1024**2
_SLACK_FILES = 1000
_NEARLY_FULL = "the broker's disk is nearly full"
_UNMEASURED_S = 10.0
"""A workspace that could not be measured completely for so long counts as far over its limit."""


class Standing(enum.Enum):
    WITHIN = "within"
    OVER = "over"
    FAR_OVER = "far over"
    """By more than a cell may exceed the limit before it reacts to its interrupt."""
    ABOVE_CEILING = "above the ceiling"
    """More than twice the limit. Cells still run, to delete files, until one of them writes more."""


class QuotaAction(enum.Enum):
    """The reaction of a session to an exceeded quota."""

    INTERRUPT = "interrupt"
    """Interrupt the running cell."""
    ABORT = "abort"
    """End the running cell, which did not stop writing, together with its kernel."""
    REPLACE = "replace"
    """Replace the kernel: no cell runs, and something writes in the background."""


@dataclass(frozen=True, slots=True)
class Quota:
    """Bytes and inodes that a workspace may hold."""

    size: int
    files: int
    is_of_disk: bool = False
    """The size is not the limit of the workspace: the broker's disk is nearly full."""

    @classmethod
    def of(cls, limits: Limits) -> Quota:
        return cls(limits.workspace_size, limits.workspace_files)

    def lowered_to(self, size: int | None) -> Quota:
        """This quota with at most so many bytes; None for no other limit."""
        return self if size is None else Quota(min(self.size, size), self.files)

    def held_at(self, usage: Usage) -> Quota:
        """This quota while the disk is nearly full: no growth beyond the usage."""
        return Quota(min(self.size, usage.size), self.files, is_of_disk=usage.size < self.size)

    def raised_to(self, usage: Usage) -> Quota:
        """The larger of this quota and the present usage."""
        return Quota(max(self.size, usage.size), max(self.files, usage.files))

    @property
    def max_count(self) -> int:
        """Number of inodes at which a measurement may stop: more cannot change the standing."""
        return 2 * self.files + 2 * self._slack_files

    def standing(self, usage: Usage) -> Standing:
        size, files = usage.size - self.size, usage.files - self.files
        if size <= 0 and files <= 0:
            return Standing.WITHIN
        if size > self.size + self._slack or files > self.files + self._slack_files:
            return Standing.ABOVE_CEILING
        if size > self._slack or files > self._slack_files:
            return Standing.FAR_OVER
        return Standing.OVER

    def is_half_used(self, usage: Usage) -> bool:
        """Whether a usage that was not measured just now may be over the limit."""
        return usage.size > self.size // 2 or usage.files > self.files // 2

    def complaint(self, usage: Usage) -> str | None:
        """The message for a workspace over its limit, with advice; None if it is within."""
        if usage.size > self.size and self.is_of_disk:
            return f"{_NEARLY_FULL}: the workspace must not grow; delete files below /data"
        if usage.size > self.size:
            held, limit = _text(usage.size), _text(self.size)
        elif usage.files > self.files:
            held, limit = f"{usage.files:,} files and directories", f"{self.files:,}"
        else:
            return None
        return f"the workspace holds {held}, its limit is {limit}; delete files below /data"

    def refusal(self, usage: Usage, more: Usage) -> str | None:
        """The message for an upload of `more` that exceeds the limit; None if it fits."""
        if usage.size + more.size > self.size and self.is_of_disk:
            return f"{_NEARLY_FULL}: try again when there is room"
        if usage.size + more.size > self.size:
            held, limit, asked = _text(usage.size), _text(self.size), _text(more.size)
        elif usage.files + more.files > self.files:
            held, limit, asked = f"{usage.files:,} files and directories", f"{self.files:,}", "one"
        else:
            return None
        return (
            f"the workspace holds {held}, its limit is {limit}: {asked} more does not fit; "
            "delete files below /data"
        )

    @property
    def _slack(self) -> int:
        return max(_SLACK, self.size // 10)

    @property
    def _slack_files(self) -> int:
        return max(_SLACK_FILES, self.files // 10)


class QuotaState:
    """The usage of one session's workspace, and the action that each measurement requires.

    The initial usage is always allowed. All later growth counts, at any speed and over any number of cells.

    Args:
        grace: seconds that an interrupted cell has to stop writing.

    Attributes:
        usage: the usage at the last measurement.
    """

    def __init__(self, quota: Quota, initial: Usage, grace: float) -> None:
        self.usage = initial
        self._quota = quota
        self._allowed = quota.raised_to(initial)
        self._grace = grace
        self._before_cell = initial
        self._interrupted_at: float | None = None
        self._incomplete_since: float | None = None
        self._refused = False

    def change(self, quota: Quota) -> None:
        """Set another quota. The present usage stays allowed."""
        if quota != self._quota:
            self._quota = quota
            self._allowed = quota.raised_to(self.usage)

    @property
    def max_count(self) -> int:
        """The bound of a measurement; see `Quota.max_count`."""
        return self._allowed.max_count

    @property
    def is_urgent(self) -> bool:
        """Whether the next measurement should be soon."""
        return self._interrupted_at is not None or self._incomplete_since is not None

    @property
    def complaint(self) -> str | None:
        """The message for a workspace over its limit; see `Quota.complaint`."""
        return self._quota.complaint(self.usage)

    @property
    def refusal(self) -> str | None:
        """The reason why no cell may run; None if cells may run."""
        if not self._refused:
            return None
        return (
            f"{self._quota.complaint(self.usage)}. It is so far over its limit that no cell runs: delete "
            "files over the files API, or open a session with another workspace"
        )

    def begin_cell(self) -> None:
        self._before_cell = self.usage
        self._interrupted_at = None

    def look(
        self, found: Usage, *, now: float, cell_runs: bool, client_wrote: bool
    ) -> tuple[QuotaAction, str] | None:
        """Record a measurement. Returns the session's action with its reason, if there is one.

        Args:
            now: seconds of a monotonic clock.
            client_wrote: a client has changed files since the last measurement, so code in the sandbox
                may not be the cause of growth.
        """
        last = self.usage
        if found.complete:
            self.usage, self._incomplete_since = found, None
            # Deleted bytes must not be written again.
            self._allowed = Quota(
                max(self._quota.size, min(self._allowed.size, found.size)),
                max(self._quota.files, min(self._allowed.files, found.files)),
            )
        else:
            self.usage = Usage(max(last.size, found.size), max(last.files, found.files))
            if self._incomplete_since is None:
                self._incomplete_since = now
        standing, complaint = self._allowed.standing(self.usage), self.complaint or ""
        grew_since = self._before_cell if cell_runs else last
        grew = self.usage.size > grew_since.size or self.usage.files > grew_since.files
        if standing is not Standing.ABOVE_CEILING:
            self._refused = False
        elif grew and self._allowed.standing(self._before_cell) is Standing.ABOVE_CEILING:
            self._refused = True
        since = self._incomplete_since
        if since is not None and now - since >= _UNMEASURED_S:
            grew = True
            if standing in (Standing.WITHIN, Standing.OVER):
                standing = Standing.FAR_OVER
                complaint = (
                    "the workspace cannot be measured, since its files are moved too quickly or too many "
                    "files are open; it is taken for too large"
                )
        if cell_runs:
            return self._judge_cell(standing, grew, complaint, now)
        far_over = standing is Standing.FAR_OVER and not client_wrote
        if grew and (far_over or standing is Standing.ABOVE_CEILING):
            self._incomplete_since = None
            return QuotaAction.REPLACE, complaint
        return None

    def _judge_cell(
        self, standing: Standing, grew: bool, complaint: str, now: float
    ) -> tuple[QuotaAction, str] | None:
        if standing is Standing.WITHIN or not grew:
            return None
        if self._interrupted_at is None:
            self._interrupted_at = now
            return QuotaAction.INTERRUPT, complaint
        in_grace = now - self._interrupted_at < self._grace
        if not self._refused and (in_grace or standing is Standing.OVER):
            return None
        self._incomplete_since = None
        message = (
            f"{complaint}. The cell wrote on, so the kernel was replaced; its variables are lost, "
            "the files are kept"
        )
        return QuotaAction.ABORT, message


def _text(size: int) -> str:
    """A size with a unit."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB"
