"""The limits of one sandbox."""

from __future__ import annotations

from dataclasses import dataclass

CPU_PERIOD_US = 100_000
"""The period of control groups for which processor time is limited."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one sandbox. Sizes are in bytes, `cpus` in cores."""

    cpus: float = 1.0
    memory: int = 2 * 1024**3
    processes: int = 100
    tmp_size: int = 100 * 1024**2
    open_files: int = 1024
    workspace_size: int = 1024**3
    """Of all files together, enforced by the sessions. It is also a limit of a single file."""
    workspace_files: int = 250_000
    """Files and directories in the workspace."""
    file_size: int | None = None
    """Of a single file, if less than `workspace_size`."""
    timeout: float | None = None
    """Seconds that a cell may run at most, enforced by the sessions; the broker's setting if None."""

    @property
    def cpu_quota(self) -> int:
        """Microseconds of processor time in each period; the kernel refuses less than 1 ms."""
        return max(1000, int(self.cpus * CPU_PERIOD_US))
