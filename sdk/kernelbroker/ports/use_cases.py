"""The use cases of a program that embeds sandboxes. They depend on the port alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from uuid import uuid4

from ..code_errors import CodeOperationError, CodeOperationValidationError
from ..protocol.operations import CodeOperationResponse
from .models import (
    CodeOperation,
    CodeOperationRequest,
    OperationStatus,
    OperationType,
    SandboxConfig,
    SandboxInstance,
    SandboxStatus,
    now,
)
from .sandbox_port import SandboxPort


class CreateSandbox:
    """Creates a sandbox for a project."""

    def __init__(self, sandboxes: SandboxPort) -> None:
        self._sandboxes = sandboxes

    async def execute(self, project_path: str, config: SandboxConfig) -> SandboxInstance:
        """Check the configuration, and create the sandbox.

        Raises:
            CodeOperationValidationError: a field of the configuration is invalid, or there is no project.
            CodeOperationError: the sandbox could not be created.
        """
        config.limits()
        if not project_path:
            message = "project_path is empty: give a directory, or a tar archive"
            raise CodeOperationValidationError(message, "", "create_sandbox", "bad_request")
        return await self._sandboxes.create_sandbox(project_path, config)

    __call__ = execute


class ExecuteCodeOperation:
    """Runs operations, and tells what becomes of them.

    Args:
        observe: called with the operation whenever its status has changed.
    """

    def __init__(
        self, sandboxes: SandboxPort, observe: Callable[[CodeOperation], None] | None = None
    ) -> None:
        self._sandboxes = sandboxes
        self._observe = observe or (lambda _: None)

    async def execute(self, request: CodeOperationRequest) -> CodeOperationResponse:
        """Run an operation. What was refused, or failed, is a response with `error`; nothing is raised.

        An operation that is cancelled ends as `failed`, and the cancellation goes on.
        """
        started_at = time.monotonic()
        kind = _known(request.operation)
        operation = CodeOperation(uuid4().hex, kind, request.sandbox_id, "")
        self._observe(operation)
        response = CodeOperationResponse(False, error="it was cancelled", code="cancelled")
        try:
            sandbox = await self._sandboxes.get_sandbox(request.sandbox_id)
            if sandbox is None or sandbox.status in (
                SandboxStatus.TERMINATED,
                SandboxStatus.ERROR,
            ):
                message = f"there is no sandbox {request.sandbox_id}: create one"
                raise CodeOperationError(
                    message, request.sandbox_id, str(request.operation), "not_found"
                )
            operation.project_path = sandbox.project_path
            operation.status = OperationStatus.IN_PROGRESS
            self._observe(operation)
            response = await self._sandboxes.execute_operation(request)
        except CodeOperationError as exc:
            response = CodeOperationResponse(False, error=exc.message, code=exc.code)
        finally:
            if response.execution_time_ms is None:
                response.execution_time_ms = round((time.monotonic() - started_at) * 1000)
            succeeded = response.success
            operation.status = OperationStatus.COMPLETED if succeeded else OperationStatus.FAILED
            operation.result, operation.error = response.result, response.error
            operation.execution_time_ms = response.execution_time_ms
            operation.completed_at = now()
            self._observe(operation)
        return response

    __call__ = execute


def _known(operation: OperationType | str) -> OperationType | str:
    try:
        return OperationType(operation)
    except ValueError:
        return operation
