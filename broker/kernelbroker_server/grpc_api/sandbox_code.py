"""The methods of `SandboxCodeService`. Each is one operation of `service.code_operations`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from kernelbroker.grpc.sandbox_code_pb2 import (
    BuildRequest,
    BuildResponse,
    CommandOutput,
    CommandRequest,
    CommitRequest,
    CommitResponse,
    CreatePRRequest,
    CreatePRResponse,
    EditRequest,
    EditResponse,
    ReadRequest,
    ReadResponse,
    SearchRequest,
    SearchResponse,
    TestRequest,
    TestResponse,
)
from kernelbroker.protocol.errors import (
    InternalError,
    RequestError,
    SessionGone,
    TooManyRequests,
    Unavailable,
)
from kernelbroker.protocol.events import Event, Result, Stderr, Stdout
from kernelbroker.protocol.operations import CodeOperationResponse

from ..service import code_operations
from ..service.tenant_service import TenantService
from ..sessions.session import Session
from . import messages
from .calls import Calls, Context

_OF_THE_SESSION = (SessionGone, TooManyRequests, Unavailable, InternalError)
"""Errors that are a status; what an operation is refused for otherwise is its response."""


class SandboxCode:
    """Runs operations for the tenants of the calls' tokens."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def ReadFile(self, request: ReadRequest, context: Context) -> ReadResponse:
        parameters = messages.read_parameters(request)
        return messages.read_response(await self._operate(context, "ReadFile", "read", parameters))

    async def EditFile(self, request: EditRequest, context: Context) -> EditResponse:
        parameters = messages.edit_parameters(request)
        return messages.edit_response(await self._operate(context, "EditFile", "edit", parameters))

    async def SearchFiles(self, request: SearchRequest, context: Context) -> SearchResponse:
        parameters = messages.search_parameters(request)
        answer = await self._operate(context, "SearchFiles", "search", parameters)
        return messages.search_response(answer)

    async def GitCommit(self, request: CommitRequest, context: Context) -> CommitResponse:
        parameters = messages.commit_parameters(request)
        answer = await self._operate(context, "GitCommit", "git_commit", parameters)
        return messages.commit_response(answer)

    async def GitCreatePR(self, request: CreatePRRequest, context: Context) -> CreatePRResponse:
        parameters = messages.pull_request_parameters(request)
        answer = await self._operate(context, "GitCreatePR", "git_create_pr", parameters)
        return messages.pull_request_response(answer)

    async def RunTest(self, request: TestRequest, context: Context) -> TestResponse:
        parameters = messages.test_parameters(request)
        return messages.test_response(
            *await self._collect(context, "RunTest", "run_tests", parameters)
        )

    async def RunBuild(self, request: BuildRequest, context: Context) -> BuildResponse:
        parameters = messages.build_parameters(request)
        return messages.build_response(
            *await self._collect(context, "RunBuild", "build", parameters)
        )

    async def StreamCommand(
        self, request: CommandRequest, context: Context
    ) -> AsyncIterator[CommandOutput]:
        parameters = messages.command_parameters(request)
        async with self._calls.call(context, "StreamCommand") as (tenant, session):
            running = _run(tenant, session, "run", parameters)
            async with contextlib.aclosing(running) as events:
                async for each in events:
                    if isinstance(each, Stdout):
                        yield CommandOutput(stdout=messages.text(each.content))
                    elif isinstance(each, Stderr):
                        yield CommandOutput(stderr=messages.text(each.content))
                    elif isinstance(each, CodeOperationResponse):
                        yield CommandOutput(result=messages.command_result(each))

    async def _operate(
        self, context: Context, method: str, operation: str, parameters: dict[str, Any]
    ) -> CodeOperationResponse:
        """Run an operation that runs no code of the project."""
        async with self._calls.call(context, method) as (tenant, session):
            try:
                return await code_operations.operate(session, operation, parameters, tenant.forges)
            except RequestError as exc:
                return _refused(exc)
        raise AssertionError("a failed call was aborted")

    async def _collect(
        self, context: Context, method: str, operation: str, parameters: dict[str, Any]
    ) -> tuple[CodeOperationResponse, str]:
        """Run an operation that is an execution, and return its answer and its output."""
        output: list[str] = []
        async with self._calls.call(context, method) as (tenant, session):
            running = _run(tenant, session, operation, parameters)
            async with contextlib.aclosing(running) as events:
                async for each in events:
                    if isinstance(each, Stdout | Stderr):
                        output.append(each.content)
                    elif isinstance(each, CodeOperationResponse):
                        return each, "".join(output)
        raise AssertionError("a failed call was aborted")


async def _run(
    tenant: TenantService, session: Session, operation: str, parameters: dict[str, Any]
) -> AsyncGenerator[Event | CodeOperationResponse, None]:
    """Yield the events of an operation that is an execution, and its answer at the end.

    If the caller is cancelled, or stops to read, the execution is interrupted.
    """
    try:
        log = await code_operations.submit(tenant.executions, session, operation, parameters)
    except RequestError as exc:
        yield _refused(exc)
        return
    try:
        async for stored in log.follow():
            if isinstance(stored.event, Result):
                yield code_operations.response_of(stored.event)
            else:
                yield stored.event
    except (asyncio.CancelledError, GeneratorExit):
        with contextlib.suppress(SessionGone):
            session.interrupt(log.id)
        raise


def _refused(error: RequestError) -> CodeOperationResponse:
    if isinstance(error, _OF_THE_SESSION):
        raise error
    return CodeOperationResponse(False, error=error.message, code=error.code)
