"""The port: what a program needs of sandboxes for projects, whoever provides them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Protocol, runtime_checkable

from ..protocol.operations import CodeOperationResponse
from .models import CodeOperationRequest, SandboxConfig, SandboxInstance


@runtime_checkable
class SandboxPort(Protocol):
    """Creates sandboxes that hold a project, and runs operations in them.

    What fails raises a `CodeOperationError` or one of its kinds. Tests, builds and commands that ran and
    failed are answers with `success=False`.
    """

    async def create_sandbox(self, project_path: str, config: SandboxConfig) -> SandboxInstance:
        """Create a sandbox that holds the project, and return it when it runs."""

    async def get_sandbox(self, sandbox_id: str) -> SandboxInstance | None:
        """Return a sandbox; None if there is none with this id."""

    async def terminate_sandbox(self, sandbox_id: str) -> bool:
        """End a sandbox. Returns whether there was one to end."""

    async def execute_operation(self, request: CodeOperationRequest) -> CodeOperationResponse:
        """Run an operation on the project of a sandbox, and wait for its outcome."""

    def stream_operation(self, request: CodeOperationRequest) -> AsyncIterator[dict[str, Any]]:
        """Run an operation, and yield its events; the last one has the type `result`."""

    async def list_sandboxes(self) -> list[SandboxInstance]:
        """Return the sandboxes that have not ended, oldest first."""
