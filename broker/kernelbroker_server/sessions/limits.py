"""The limits and defaults of a session's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.errors import BadRequest
from kernelbroker.protocol.messages import ExecutionRequest, SandboxLimits

from ..backends.base import Limits
from ..kernels.outputs import OutputLimits


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """The limits of sessions and executions. Durations are in seconds.

    Attributes:
        sleep_after: a session that was idle for this time falls asleep; None for never.
        asleep_retention: a session that slept for this time is closed.
        contexts: how many contexts a session may have.
    """

    idle_timeout: float = 1800.0
    max_lifetime: float = 7200.0
    default_timeout: float = 30.0
    max_timeout: float = 300.0
    interrupt_grace: float = 2.0
    sleep_after: float | None = None
    asleep_retention: float = 7 * 86400.0
    contexts: int = 16
    max_code_chars: int = 100_000
    max_preview_rows: int = 500
    max_file_bytes: int = 100 * 1024**2
    max_metadata_bytes: int = 16 * 1024
    output: OutputLimits = field(default_factory=OutputLimits)

    def of_template(self, own: Limits) -> SessionLimits:
        """Return these limits, with those that a template has set in their place."""
        if own.timeout is None and own.file_size is None:
            return self
        longest = self.max_timeout if own.timeout is None else own.timeout
        largest = self.max_file_bytes if own.file_size is None else own.file_size
        return replace(
            self,
            max_timeout=longest,
            default_timeout=min(self.default_timeout, longest),
            max_file_bytes=min(self.max_file_bytes, largest),
        )

    def lowered_to(self, own: SandboxLimits) -> SessionLimits:
        """Return these limits, with those that a session has lowered."""
        if own.timeout is None or own.timeout >= self.max_timeout:
            return self
        longest = own.timeout
        default = min(self.default_timeout, longest)
        return replace(self, max_timeout=longest, default_timeout=default)

    def timeout_of(self, request: ExecutionRequest) -> float:
        """Return the execution's timeout in seconds. Raises BadRequest if the request exceeds a limit."""
        self.check_code(request.code)
        check_secrets(request.secrets)
        if request.preview_rows > self.max_preview_rows:
            raise BadRequest(f"preview_rows is at most {self.max_preview_rows}")
        if request.timeout is not None and request.timeout > self.max_timeout:
            raise BadRequest(f"timeout is at most {self.max_timeout:g} s")
        return request.timeout or self.default_timeout

    def check_code(self, code: str) -> None:
        """Check the length of the code. Raises BadRequest if it is too long."""
        if len(code) > self.max_code_chars:
            raise BadRequest(
                f"the code has {len(code):,} characters; {self.max_code_chars:,} is the limit. "
                "Write large data to a file in the workspace instead"
            )

    def check_metadata(self, metadata: dict[str, Any]) -> None:
        """Check the size of the metadata. Raises BadRequest if it is too large."""
        size = len(encode(metadata))
        if size > self.max_metadata_bytes:
            raise BadRequest(
                f"metadata has {size:,} bytes as JSON; {self.max_metadata_bytes:,} is the limit. "
                "Keep what is larger in a file of the workspace"
            )


_MAX_SECRETS, _MAX_SECRET_CHARS, _MAX_SECRET_LINES = 100, 65_536, 2_000
"""Of a session or an execution together. Each line of a value is looked for in all output."""


def check_secrets(secrets: Mapping[str, str]) -> None:
    """Check how much has to be masked. Raises BadRequest if it is too much."""
    for found, most, unit in (
        (len(secrets), _MAX_SECRETS, "values"),
        (sum(map(len, secrets.values())), _MAX_SECRET_CHARS, "characters"),
        (sum(value.count("\n") for value in secrets.values()), _MAX_SECRET_LINES, "lines"),
    ):
        if found > most:
            raise BadRequest(
                f"secrets have at most {most:,} {unit} together, and these have {found:,}; write what is "
                "longer to a file of the workspace"
            )
