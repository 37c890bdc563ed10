"""Sandboxes of a broker behind the port: a sandbox is a session with a project.

A sandbox is described in the metadata of its session, so that another program of the same tenant, or this
one after a restart, finds it by its id.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any
from uuid import uuid4

import msgspec

from ..client import Broker
from ..code_errors import (
    CodeOperationError,
    CodeOperationValidationError,
    SandboxConnectionError,
    SandboxTimeoutError,
    error_of,
)
from ..protocol.errors import (
    ConnectionFailed,
    ConnectionLost,
    KernelBrokerError,
    NotFound,
    RequestError,
    SessionGone,
    Unauthorized,
)
from ..protocol.messages import SessionInfo
from ..protocol.operations import RUNNING, CodeOperationResponse
from ..session import Session
from .models import (
    CodeOperationRequest,
    OperationType,
    SandboxConfig,
    SandboxInstance,
    SandboxStatus,
    now,
)

_METADATA = "kernelbroker.sandbox"
"""The key of the session's metadata that describes the sandbox."""
_NATIVE = {
    OperationType.TEST: "run_tests",
    OperationType.GIT_PR: "git_create_pr",
}
"""The names of operations whose type is named otherwise."""
_STATUS = {
    "idle": SandboxStatus.RUNNING,
    "busy": SandboxStatus.RUNNING,
    "asleep": SandboxStatus.STOPPED,
    "closed": SandboxStatus.TERMINATED,
}


class BrokerSandboxes:
    """The sandboxes of a broker's tenant, as a `SandboxPort`.

    Leaving the `async with`, or `close`, ends connections only: the sandboxes stay until they are
    terminated or their sessions expire.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._sessions: dict[str, Session] = {}
        self._ended: dict[str, SandboxInstance] = {}
        """Those that were terminated here, so that `get_sandbox` can tell."""

    async def create_sandbox(self, project_path: str, config: SandboxConfig) -> SandboxInstance:
        """Open a session of the template `config.provider` with the project.

        Args:
            project_path: a directory of this machine or a tar archive, which is uploaded, or the URL of a
                git repository, which the sandbox clones.

        Raises:
            CodeOperationValidationError: the configuration is invalid, there is no such directory, or no
                such template.
            CodeOperationError: there is no free sandbox, or the project is refused.
        """
        limits = config.limits()
        is_url = "://" in project_path
        if not is_url and not await asyncio.to_thread(Path(project_path).exists):
            message = f"{project_path}: there is no such directory or archive on this machine"
            raise CodeOperationValidationError(message, "", "create_sandbox", "not_found")
        described = {"project_path": str(project_path), "config": asdict(config)}
        session = self._broker.session(
            uuid4().hex,
            template=config.provider,
            limits=limits,
            project=project_path if is_url else None,
            metadata={_METADATA: described},
            keep=True,
        )
        async with _translated(session.session_id, "create_sandbox"):
            try:
                await session.open()
                if not is_url:
                    await session.code.upload(project_path)
            except BaseException:
                with suppress(KernelBrokerError):  # it may not be there
                    await self._end(session)
                raise
            assert session.info is not None, "it is open"
            self._sessions[session.session_id] = session
            return self._instance(session.info)

    async def get_sandbox(self, sandbox_id: str) -> SandboxInstance | None:
        """Return a sandbox; None if no session of the tenant is a sandbox with this id."""
        if (ended := self._ended.get(sandbox_id)) is not None:
            return ended
        async with _translated(sandbox_id, "get_sandbox"):
            for info in await self._broker.sessions():
                if info.session_id == sandbox_id and _METADATA in info.metadata:
                    return self._instance(info)
        return None

    async def terminate_sandbox(self, sandbox_id: str) -> bool:
        """Close the session. Returns False if it has ended before."""
        if (instance := await self.get_sandbox(sandbox_id)) is None or sandbox_id in self._ended:
            return False
        async with _translated(sandbox_id, "terminate_sandbox"):
            try:
                await self._end(await self._session(sandbox_id))
            except (NotFound, SessionGone):
                return False
        instance.status, instance.terminated_at = SandboxStatus.TERMINATED, now()
        self._ended[sandbox_id] = instance
        if len(self._ended) > _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        return True

    async def execute_operation(self, request: CodeOperationRequest) -> CodeOperationResponse:
        """Run an operation, within the timeout of the sandbox's configuration.

        Raises:
            SandboxTimeoutError, SandboxResourceError, SandboxSecurityError, SandboxConnectionError,
            CodeOperationValidationError, CodeOperationError
        """
        name = _native(request.operation)
        async with _translated(request.sandbox_id, name):
            session = await self._session(request.sandbox_id)
            if name in RUNNING:  # the broker ends it, and the result says so
                return await session.code.execute(name, request.parameters)
            seconds = _config(session.info).seconds
            try:
                async with asyncio.timeout(seconds):
                    return await session.code.execute(name, request.parameters)
            except TimeoutError as exc:
                message = f"it took longer than {seconds:g} s"
                raise SandboxTimeoutError(message, request.sandbox_id, name, "timeout") from exc

    async def stream_operation(
        self, request: CodeOperationRequest
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Run an operation, and yield its events as dicts; the last one has the type `result`."""
        name = _native(request.operation)
        async with _translated(request.sandbox_id, name):
            session = await self._session(request.sandbox_id)
            async with aclosing(session.code.stream(name, request.parameters)) as events:
                async for event in events:
                    yield event

    async def list_sandboxes(self) -> list[SandboxInstance]:
        """Return the open sessions of the tenant that are sandboxes, oldest first."""
        async with _translated("", "list_sandboxes"):
            infos = await self._broker.sessions()
        return [self._instance(info) for info in infos if _METADATA in info.metadata]

    async def close(self) -> None:
        """Close the connections. The sandboxes stay."""
        sessions, self._sessions = self._sessions, {}
        await asyncio.gather(*(session.close() for session in sessions.values()))

    async def __aenter__(self) -> BrokerSandboxes:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def _session(self, sandbox_id: str) -> Session:
        """Raises NotFound, SessionGone: there is no such sandbox, or it has ended."""
        if (session := self._sessions.get(sandbox_id)) is None:
            session = await self._broker.attach(sandbox_id, keep=True)
            if session.info is None or _METADATA not in session.info.metadata:
                await session.close()
                raise NotFound(f"session {sandbox_id} is no sandbox of `kernelbroker.ports`")
            self._sessions[sandbox_id] = session
        return session

    async def _end(self, session: Session) -> None:
        """Close a session that was opened with `keep`."""
        self._sessions.pop(session.session_id, None)
        await session.close()
        await self._broker.close_session(session.session_id)

    def _instance(self, info: SessionInfo) -> SandboxInstance:
        described = info.metadata[_METADATA]
        return SandboxInstance(
            id=info.session_id,
            status=_STATUS[info.state],
            config=_config(info),
            project_path=str(described.get("project_path", "")),
            endpoint=f"{self._broker.url}/api/v1/sessions/{info.session_id}",
            created_at=info.created_at,
        )


_MAX_ENDED = 1_000


def _config(info: SessionInfo | None) -> SandboxConfig:
    """The configuration of a sandbox. Its metadata can be changed by whoever has the token."""
    described = {} if info is None else info.metadata.get(_METADATA, {})
    try:
        return msgspec.convert(described["config"], SandboxConfig)
    except (msgspec.ValidationError, KeyError, TypeError) as exc:
        raise CodeOperationError(
            f"the metadata of the session do not describe a sandbox: {exc}",
            "" if info is None else info.session_id,
            code="conflict",
        ) from exc


def _native(operation: OperationType | str) -> str:
    try:
        kind = OperationType(operation)
    except ValueError:
        return str(operation)
    return _NATIVE.get(kind, kind.value)


@asynccontextmanager
async def _translated(sandbox_id: str, operation: str) -> AsyncIterator[None]:
    """Raise errors of the client as errors of an operation, except those of the token."""
    try:
        yield
    except (CodeOperationError, Unauthorized):
        raise
    except RequestError as exc:
        raise error_of(exc.code, exc.message, sandbox_id, operation) from exc
    except (ConnectionFailed, ConnectionLost) as exc:
        raise SandboxConnectionError(str(exc), sandbox_id, operation, "connection") from exc
    except (NotADirectoryError, PermissionError, FileNotFoundError) as exc:
        raise CodeOperationValidationError(str(exc), sandbox_id, operation, "bad_request") from exc
