"""Ports for those who embed sandboxes in a program of their own, as in hexagonal designs.

    sandboxes = BrokerSandboxes(broker)                      # an adapter: it implements SandboxPort
    sandbox = await CreateSandbox(sandboxes)("path/to/project", SandboxConfig("default", ""))
    request = CodeOperationRequest(sandbox.id, OperationType.TEST)
    response = await ExecuteCodeOperation(sandboxes)(request)

The program's own code depends on `SandboxPort` and the models only, so that its tests can have another
adapter in the broker's place.
"""

from ..protocol.operations import CodeOperationResponse
from .broker_sandboxes import BrokerSandboxes
from .models import (
    CodeOperation,
    CodeOperationRequest,
    OperationStatus,
    OperationType,
    SandboxConfig,
    SandboxInstance,
    SandboxStatus,
)
from .sandbox_port import SandboxPort
from .use_cases import CreateSandbox, ExecuteCodeOperation

__all__ = [
    "BrokerSandboxes",
    "CodeOperation",
    "CodeOperationRequest",
    "CodeOperationResponse",
    "CreateSandbox",
    "ExecuteCodeOperation",
    "OperationStatus",
    "OperationType",
    "SandboxConfig",
    "SandboxInstance",
    "SandboxPort",
    "SandboxStatus",
]
