"""The ports for programs that embed sandboxes: models, and use cases over an adapter of the test's own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import fields
from typing import Any

import pytest
from kernelbroker import CodeOperationError, CodeOperationValidationError, SandboxTimeoutError
from kernelbroker.ports import (
    BrokerSandboxes,
    CodeOperation,
    CodeOperationRequest,
    CodeOperationResponse,
    CreateSandbox,
    ExecuteCodeOperation,
    OperationStatus,
    OperationType,
    SandboxConfig,
    SandboxInstance,
    SandboxPort,
    SandboxStatus,
)

CONFIG = SandboxConfig(provider="default", image="kernelbroker-code")


class FakeSandboxes:
    """An adapter in memory."""

    def __init__(self) -> None:
        self.instances: dict[str, SandboxInstance] = {}
        self.answers: list[CodeOperationResponse | BaseException] = []

    async def create_sandbox(self, project_path: str, config: SandboxConfig) -> SandboxInstance:
        found = SandboxInstance("one", SandboxStatus.RUNNING, config, project_path)
        self.instances["one"] = found
        return found

    async def get_sandbox(self, sandbox_id: str) -> SandboxInstance | None:
        return self.instances.get(sandbox_id)

    async def terminate_sandbox(self, sandbox_id: str) -> bool:
        return self.instances.pop(sandbox_id, None) is not None

    async def execute_operation(self, request: CodeOperationRequest) -> CodeOperationResponse:
        answer = self.answers.pop(0)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def stream_operation(
        self, request: CodeOperationRequest
    ) -> AsyncIterator[dict[str, Any]]:
        yield {"type": "result"}

    async def list_sandboxes(self) -> list[SandboxInstance]:
        return [*self.instances.values()]


def names(cls: type) -> list[str]:
    return [each.name for each in fields(cls)]


def test_models_have_their_fields_and_values() -> None:
    """The models have the documented fields, in order, and the enums are texts."""
    assert names(SandboxConfig) == [
        "provider",
        "image",
        "cpu_limit",
        "memory_limit",
        "timeout_seconds",
        "network_isolated",
        "security_profile",
    ]
    assert (CONFIG.cpu_limit, CONFIG.memory_limit, CONFIG.timeout_seconds) == ("2", "4G", 300)
    assert (CONFIG.network_isolated, CONFIG.security_profile) == (True, "standard")
    assert names(SandboxInstance) == [
        "id",
        "status",
        "config",
        "project_path",
        "endpoint",
        "created_at",
        "terminated_at",
    ]
    assert names(CodeOperation) == [
        "id",
        "operation_type",
        "sandbox_id",
        "project_path",
        "status",
        "result",
        "error",
        "created_at",
        "completed_at",
        "execution_time_ms",
    ]
    assert names(CodeOperationRequest) == ["sandbox_id", "operation", "parameters"]
    assert CodeOperationResponse.__struct_fields__[:4] == (
        "success",
        "result",
        "error",
        "execution_time_ms",
    )
    values = {each.value for each in SandboxStatus}
    assert values == {"creating", "running", "stopped", "terminated", "error"}
    values = {each.value for each in OperationType}
    assert values == {"read", "edit", "test", "build", "git_commit", "git_pr"}
    values = {each.value for each in OperationStatus}
    assert values == {"pending", "in_progress", "completed", "failed"}
    assert f"{OperationType.GIT_PR}" == "git_pr" == OperationType.GIT_PR


def test_both_adapters_are_ports() -> None:
    """The broker's adapter, and one of a program's own, have the methods of the port."""
    assert isinstance(FakeSandboxes(), SandboxPort)
    assert issubclass(BrokerSandboxes, SandboxPort)
    assert not isinstance(object(), SandboxPort)


@pytest.mark.parametrize(
    ("cpus", "memory", "expected"),
    [
        ("2", "4G", (2.0, 4 * 2**30)),
        ("0.5", "512M", (0.5, 512 * 2**20)),
        ("250m", "1Gi", (0.25, 2**30)),
        ("1", "1.5 GiB", (1.0, 3 * 2**29)),
        ("1", "1073741824", (1.0, 2**30)),
        ("64", "1T", (2.0, 4 * 2**30)),
    ],
)
def test_limits_as_people_write_them(cpus: str, memory: str, expected: tuple[float, int]) -> None:
    """Limits are numbers with units; a profile bounds them."""
    limits = SandboxConfig("default", "", cpu_limit=cpus, memory_limit=memory).limits()
    assert (limits.cpus, limits.memory) == expected


def test_isolated_means_no_network() -> None:
    """A sandbox has a network only if it is not isolated and its profile is not strict."""
    assert CONFIG.limits().network == "none"
    assert SandboxConfig("web", "", network_isolated=False).limits().network is None
    strict = SandboxConfig("web", "", network_isolated=False, security_profile="strict").limits()
    assert (strict.network, strict.cpus, strict.memory, strict.timeout) == ("none", 1, 2**31, 120)
    assert SandboxConfig("web", "", timeout_seconds=7).limits().timeout == 7


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("cpu_limit", "-1"),
        ("cpu_limit", "0"),
        ("cpu_limit", "many"),
        ("memory_limit", ""),
        ("memory_limit", "4X"),
        ("memory_limit", "0"),
        ("memory_limit", "9" * 30),
        ("timeout_seconds", 0),
        ("timeout_seconds", "300"),
        ("timeout_seconds", True),
        ("security_profile", "none"),
    ],
)
async def test_invalid_configurations(field: str, value: object) -> None:
    """A field that is invalid is named, and nothing is created."""
    sandboxes = FakeSandboxes()
    config = SandboxConfig("default", "", **{field: value})  # type: ignore[arg-type]
    with pytest.raises(CodeOperationValidationError, match=field) as caught:
        await CreateSandbox(sandboxes).execute("project", config)
    assert (caught.value.operation, sandboxes.instances) == ("create_sandbox", {})


async def test_an_operation_is_told_from_beginning_to_end() -> None:
    """The use case tells each status of an operation, and returns the adapter's response."""
    sandboxes, seen = FakeSandboxes(), list[tuple[str, str]]()
    with pytest.raises(CodeOperationValidationError, match="project_path"):
        await CreateSandbox(sandboxes)("", CONFIG)
    sandbox = await CreateSandbox(sandboxes)("/project", CONFIG)
    operations: list[CodeOperation] = []

    def observe(operation: CodeOperation) -> None:
        seen.append((operation.status.value, operation.project_path))
        operations.append(operation)

    execute = ExecuteCodeOperation(sandboxes, observe)
    sandboxes.answers = [CodeOperationResponse(True, {"passed": 1}, None, 12)]
    response = await execute(CodeOperationRequest(sandbox.id, "test"))
    assert (response.success, response.result, response.execution_time_ms) == (
        True,
        {"passed": 1},
        12,
    )
    assert seen == [("pending", ""), ("in_progress", "/project"), ("completed", "/project")]
    ended = operations[-1]
    assert (ended.operation_type, ended.result, ended.error) == (
        OperationType.TEST,
        {"passed": 1},
        None,
    )
    assert ended.completed_at is not None
    assert ended.completed_at >= ended.created_at


async def test_errors_become_responses() -> None:
    """What was refused or failed is a response; an unknown sandbox is one; a cancellation goes on."""
    sandboxes, ended = FakeSandboxes(), list[CodeOperation]()
    sandbox = await CreateSandbox(sandboxes)("/project", CONFIG)
    execute = ExecuteCodeOperation(sandboxes, ended.append)
    sandboxes.answers = [
        CodeOperationResponse(False, {"failed": 1}, "1 test failed", 5, "failed"),
        SandboxTimeoutError("too long", sandbox.id, "test", "timeout"),
        asyncio.CancelledError(),
    ]
    request = CodeOperationRequest(sandbox.id, OperationType.TEST)
    failed = await execute(request)
    assert (failed.error, ended[-1].status, ended[-1].result) == (
        "1 test failed",
        OperationStatus.FAILED,
        {"failed": 1},
    )
    late = await execute(request)
    assert (late.success, late.error, late.code) == (False, "too long", "timeout")
    assert late.execution_time_ms is not None
    with pytest.raises(asyncio.CancelledError):
        await execute(request)
    assert (ended[-1].status, ended[-1].error) == (OperationStatus.FAILED, "it was cancelled")
    unknown = await execute(CodeOperationRequest("another", "search"))
    assert (unknown.success, unknown.code) == (False, "not_found")
    assert ended[-1].operation_type == "search"
    sandbox.status = SandboxStatus.TERMINATED
    assert "create one" in str((await execute(request)).error)


def test_errors_have_their_attributes() -> None:
    """An error has the message, the sandbox and the operation."""
    error = CodeOperationError("broken", "one", "edit")
    assert (str(error), error.message, error.sandbox_id, error.operation) == (
        "broken",
        "broken",
        "one",
        "edit",
    )
