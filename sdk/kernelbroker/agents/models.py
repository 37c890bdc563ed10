"""What is asked of a sandbox, and what it answers. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, TypeAlias, get_args

from ..protocol.findings import Language
from ..results import ExecutionResult as CellResult

SandboxType: TypeAlias = Literal["subprocess", "docker_simple", "aio_sandbox"]
"""`subprocess` is a jail, never a bare process; `docker_simple` a container, with gVisor if there is one;
`aio_sandbox` has a browser."""

SANDBOX_TYPES: tuple[SandboxType, ...] = get_args(SandboxType)
LANGUAGES: tuple[Language, ...] = get_args(Language)

MIB = 2**20
REFUSED = -1
"""The exit code of code that did not run."""


@dataclass(frozen=True, slots=True)
class ExecutionRequest:
    """Code to run.

    Attributes:
        code: one cell.
        language: `python`, `javascript` or `shell`.
        timeout: seconds after which it is interrupted.
        sandbox_type: the kind of sandbox; None leaves it to the broker.
        session_id: the session whose variables and files it has; None for that of the manager.
        max_memory_mb: MiB that the sandbox may use. It is set for this execution, at most to the limit of
            the template.
        max_output_mb: MiB of output that are returned. The rest is dropped.
    """

    code: str
    language: str = "python"
    timeout: float = 30
    sandbox_type: str | None = None
    session_id: str | None = None
    max_memory_mb: float = 512
    max_output_mb: float = 10

    @property
    def problem(self) -> str | None:
        """What is wrong with the request; None if nothing is."""
        if not isinstance(self.code, str):
            return "code must be text"
        if self.language not in LANGUAGES:
            return f"unknown language {self.language!r}; there are: {', '.join(LANGUAGES)}"
        if self.sandbox_type is not None and self.sandbox_type not in SANDBOX_TYPES:
            known = ", ".join(SANDBOX_TYPES)
            return f"unknown sandbox_type {self.sandbox_type!r}; there are: {known}"
        for name in ("timeout", "max_memory_mb", "max_output_mb"):
            if not _is_positive(getattr(self, name)):
                return f"{name} must be a number greater than 0"
        return None


@dataclass(frozen=True, slots=True)
class ExecutionResult:
    """What code has done.

    Attributes:
        success: whether it ran to its end.
        stderr: with the traceback of an error.
        exit_code: that of a shell; 0 or 1 in other languages; -1 if the code did not run.
        error: one line; None if it succeeded.
        sandbox_type: the kind of sandbox that it got; empty if it did not run.
        execution_time_ms: milliseconds in the kernel.
        files_created: paths of new files of the workspace.
    """

    success: bool
    stdout: str = ""
    stderr: str = ""
    exit_code: int = 0
    error: str | None = None
    sandbox_type: str = ""
    execution_time_ms: int = 0
    files_created: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as values of JSON."""
        return asdict(self)

    @property
    def data(self) -> dict[str, Any]:
        """What a model gets: `stdout`, `stderr`, `exit_code`, `sandbox_type`."""
        names = ("stdout", "stderr", "exit_code", "sandbox_type")
        return {name: getattr(self, name) for name in names}


def refused(error: str, sandbox_type: str = "") -> ExecutionResult:
    """The result of code that did not run."""
    return ExecutionResult(success=False, exit_code=REFUSED, error=error, sandbox_type=sandbox_type)


def of_cell(result: CellResult, sandbox_type: str) -> ExecutionResult:
    """The result of a cell. The value of its last expression is a line of `stdout`, as in a terminal."""
    exit_code = result.exit_code
    if exit_code is None:
        exit_code = 0 if result.success else 1
    return ExecutionResult(
        success=result.success,
        stdout=result.stdout + _values(result),
        stderr=result.stderr,
        exit_code=exit_code,
        error=result.error,
        sandbox_type=sandbox_type,
        execution_time_ms=round((result.execution_time or 0) * 1000),
        files_created=[each.path for each in result.files if each.created],
    )


def _values(result: CellResult) -> str:
    """The text of the values that the cell has shown."""
    texts = []
    for output in result.outputs:
        data: Any = output.get("data")
        if output.get("output_type") == "execute_result" and isinstance(data, Mapping):
            text = data.get("text/plain")
            texts.append("".join(text) if isinstance(text, list) else str(text or ""))
    return "".join(f"{text}\n" for text in texts if text)


def _is_positive(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) and value > 0
