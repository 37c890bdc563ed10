"""The models of the ports: a sandbox with its configuration, and an operation on its project. No I/O."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from ..code_errors import CodeOperationValidationError
from ..protocol.messages import SandboxLimits


class SandboxStatus(enum.StrEnum):
    """What a sandbox does. A session that sleeps is `stopped`; the next operation wakes it."""

    CREATING = "creating"
    RUNNING = "running"
    STOPPED = "stopped"
    TERMINATED = "terminated"
    ERROR = "error"


class OperationType(enum.StrEnum):
    """The operations that every adapter has."""

    READ = "read"
    EDIT = "edit"
    TEST = "test"
    BUILD = "build"
    GIT_COMMIT = "git_commit"
    GIT_PR = "git_pr"


class OperationStatus(enum.StrEnum):
    """How far an operation is."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


_FACTORS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)i?B?", re.IGNORECASE)
_CPUS = re.compile(r"[0-9]+(?:\.[0-9]+)?|[0-9]+m")
_PROFILES = {"strict": (1.0, 2 * 2**30, 120.0), "standard": (2.0, 4 * 2**30, 300.0)}
"""The limits of processors, memory and seconds that a profile has at most."""


@dataclass(frozen=True, slots=True)
class SandboxConfig:
    """What a sandbox is like.

    Attributes:
        provider: the template of the broker that it is made from.
        image: the image that the program expects, for its own records: the template names the one that
            is used.
        cpu_limit: processors, such as `2`, `0.5` or `500m`. A limit above the template's changes nothing.
        memory_limit: bytes, such as `4G` or `512Mi`, as `cpu_limit`; a `G` has 2**30 bytes.
        timeout_seconds: how long an operation may take, as far as the template allows it.
        network_isolated: it has no network, whatever the template and the profile say.
        security_profile: `standard`, or `strict`: no network, 1 processor, 2 GiB and 120 s at most.
    """

    provider: str
    image: str
    cpu_limit: str = "2"
    memory_limit: str = "4G"
    timeout_seconds: int = 300
    network_isolated: bool = True
    security_profile: str = "standard"

    def limits(self) -> SandboxLimits:
        """Return the limits of its session. Raises CodeOperationValidationError."""
        if self.security_profile not in _PROFILES:
            known = ", ".join(_PROFILES)
            raise _invalid("security_profile", self.security_profile, f"one of: {known}")
        cpus, memory, seconds = _PROFILES[self.security_profile]
        isolated = self.network_isolated or self.security_profile == "strict"
        return SandboxLimits(
            cpus=min(cpus, _cpus(self.cpu_limit)),
            memory=min(memory, _bytes(self.memory_limit)),
            timeout=min(seconds, self.seconds),
            network="none" if isolated else None,
        )

    @property
    def seconds(self) -> float:
        """`timeout_seconds`, checked. Raises CodeOperationValidationError."""
        value: object = self.timeout_seconds  # it may come from JSON
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9:
            raise _invalid("timeout_seconds", value, "a number of seconds above 0")
        return float(value)


def _cpus(text: str) -> float:
    text = str(text).strip()
    if _CPUS.fullmatch(text):
        cpus = float(text[:-1]) / 1000 if text.endswith("m") else float(text)
        if cpus > 0:
            return cpus
    raise _invalid("cpu_limit", text, "a number of processors such as 2, 0.5 or 500m")


def _bytes(text: str) -> int:
    found = _SIZE.fullmatch(str(text).strip())
    size = int(float(found[1]) * _FACTORS[found[2].upper()]) if found else 0
    if 0 < size < 2**62:
        return size
    raise _invalid("memory_limit", text, "a size such as 4G, 512M or 1073741824")


def _invalid(name: str, value: object, expected: str) -> CodeOperationValidationError:
    message = f"{name} is {expected}, not {str(value)[:100]!r}"
    return CodeOperationValidationError(message, "", "create_sandbox", "bad_request")


def now() -> datetime:
    """The present time, in UTC."""
    return datetime.now(UTC)


@dataclass(slots=True)
class SandboxInstance:
    """A sandbox.

    Attributes:
        endpoint: its address at the broker.
        terminated_at: when it ended, as far as it is known.
    """

    id: str
    status: SandboxStatus
    config: SandboxConfig
    project_path: str
    endpoint: str | None = None
    created_at: datetime = field(default_factory=now)
    terminated_at: datetime | None = None


@dataclass(slots=True)
class CodeOperation:
    """An operation on the project of a sandbox, with its outcome.

    Attributes:
        operation_type: an `OperationType`; the native name for other operations, such as `search`.
        result: what the operation returned, also if tests or a build failed.
        error: why it failed.
    """

    id: str
    operation_type: OperationType | str
    sandbox_id: str
    project_path: str
    status: OperationStatus = OperationStatus.PENDING
    result: Any = None
    error: str | None = None
    created_at: datetime = field(default_factory=now)
    completed_at: datetime | None = None
    execution_time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class CodeOperationRequest:
    """An operation that is asked for.

    Attributes:
        operation: an `OperationType` or its value, or the native name of an operation, such as `search`.
        parameters: those of the operation; see docs/code.md.
    """

    sandbox_id: str
    operation: OperationType | str
    parameters: dict[str, Any] = field(default_factory=dict)
