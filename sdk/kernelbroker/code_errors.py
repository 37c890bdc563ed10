"""The errors of operations on a project.

The tree::

    CodeOperationError                    the operation failed; `code` says why
    ├── SandboxTimeoutError               it took too long
    ├── SandboxResourceError              no space, out of memory, or too large
    ├── SandboxSecurityError              a path or a permission is refused
    ├── SandboxConnectionError            the broker could not be reached
    ├── OperationConfirmationRequired     a policy asks first; it is a `ConfirmationRequired`, too
    └── CodeOperationValidationError      a parameter is invalid
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .protocol.errors import ConfirmationRequired, KernelBrokerError


class CodeOperationError(KernelBrokerError):
    """An operation that was not carried out.

    Attributes:
        message: what happened, and what to do next.
        sandbox_id: the session.
        operation: its name.
        code: of the error, as the broker names it.
        result: how far the operation had come: the tests that had ended, for `run_tests`; else empty.
    """

    def __init__(
        self,
        message: str,
        sandbox_id: str = "",
        operation: str = "",
        code: str = "failed",
        result: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.sandbox_id = sandbox_id
        self.operation = operation
        self.code = code
        self.result = dict(result or {})


class SandboxTimeoutError(CodeOperationError):
    """The operation took longer than its timeout."""


class SandboxResourceError(CodeOperationError):
    """The sandbox has no space or memory left, or something is too large."""


class SandboxSecurityError(CodeOperationError):
    """A path leaves the project, or a permission is missing."""


class SandboxConnectionError(CodeOperationError):
    """The broker could not be reached, also after repeated attempts."""


class CodeOperationValidationError(CodeOperationError):
    """A parameter is missing, unknown, or has an invalid value."""


class OperationConfirmationRequired(CodeOperationError, ConfirmationRequired):
    """The operation is risky. Call it again with `confirm=exc.confirmation` to run it anyway."""

    def __init__(self, cause: ConfirmationRequired, sandbox_id: str, operation: str) -> None:
        super().__init__(cause.message, sandbox_id, operation, cause.code)
        self.request_id, self.retry_after = cause.request_id, cause.retry_after
        self.findings = cause.findings
        self.confirmation, self.expires_in = cause.confirmation, cause.expires_in


_BY_CODE: dict[str, type[CodeOperationError]] = {
    "timeout": SandboxTimeoutError,
    "too_large": SandboxResourceError,
    "out_of_memory": SandboxResourceError,
    "quota_exceeded": SandboxResourceError,
    "security": SandboxSecurityError,
    "forbidden": SandboxSecurityError,
    "policy_refused": SandboxSecurityError,
    "bad_request": CodeOperationValidationError,
}


def error_of(
    code: str,
    message: str,
    sandbox_id: str,
    operation: str,
    result: Mapping[str, Any] | None = None,
) -> CodeOperationError:
    """The exception for the code of an error."""
    return _BY_CODE.get(code, CodeOperationError)(message, sandbox_id, operation, code, result)
