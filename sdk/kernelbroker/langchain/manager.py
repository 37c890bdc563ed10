"""Sandboxes by session id, for programs that start and stop them themselves."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from os import PathLike
from typing import ClassVar, Literal, TypeAlias
from uuid import uuid4

from ..client import Broker, connect
from ..protocol.errors import KernelBrokerError, SessionGone
from ..results import ExecutionResult
from ..session import Session
from .sessions import session_id_of

Status: TypeAlias = Literal["starting", "running", "stopped", "error"]


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What is known of a sandbox. `sandbox_type` is the template; times are in UTC."""

    sandbox_id: str
    session_id: str
    sandbox_type: str = "default"
    status: Status = "starting"
    created_at: datetime = field(default_factory=_now)
    last_activity: datetime = field(default_factory=_now)


class SandboxManager:
    """Starts sandboxes when they are needed. Use one manager in one event loop.

    Args:
        max_idle: seconds without a call after which `cleanup_expired` stops a sandbox.
    """

    _instance: ClassVar[SandboxManager | None] = None

    def __init__(self, broker: Broker | None = None, *, max_idle: float = 1800.0) -> None:
        self._broker = broker or connect()
        self._max_idle = max_idle
        self._sessions: dict[str, Session] = {}
        self._infos: dict[str, SandboxInfo] = {}

    @classmethod
    def get_instance(cls, broker: Broker | None = None) -> SandboxManager:
        """Return the manager of this process; the first call makes it."""
        if cls._instance is None:
            cls._instance = cls(broker)
        return cls._instance

    async def start(self, session_id: str, sandbox_type: str = "default") -> SandboxInfo:
        """Start the sandbox of a session, if it has none that runs.

        Raises:
            KernelBrokerError: the broker refused, or cannot be reached. The status is then `error`.
        """
        session = self._sessions.get(session_id)
        info = self._infos.get(session_id)
        if session is None or info is None:
            workspace = session_id_of(session_id)
            # The broker opens the id of an ended session not again: its files go to another one.
            name = workspace if info is None else uuid4().hex
            session = self._broker.session(name, template=sandbox_type, workspace=workspace)
            info = SandboxInfo(name, session_id, sandbox_type)
            self._sessions[session_id], self._infos[session_id] = session, info
        try:
            await session.open()
        except SessionGone:
            if self._sessions.get(session_id) is session:
                del self._sessions[session_id]
            return await self.start(session_id, sandbox_type)
        except KernelBrokerError:
            self._sessions.pop(session_id, None)
            self._infos[session_id] = replace(info, status="error")
            raise
        return self._touch(session_id)

    async def stop(self, session_id: str) -> None:
        """Stop the sandbox of a session. Does nothing if there is none."""
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._infos[session_id] = replace(self._infos[session_id], status="stopped")
            await session.close()

    async def execute(
        self, session_id: str, code: str, *, timeout: float | None = None
    ) -> ExecutionResult:
        """Run Python in the sandbox of a session."""
        return await (await self._running(session_id)).run(code, timeout=timeout)

    async def upload(
        self, session_id: str, local: str | PathLike[str], remote: str | None = None
    ) -> None:
        """Copy a local file into the sandbox."""
        await (await self._running(session_id)).files.upload(local, remote)

    async def download(self, session_id: str, remote: str, local: str | PathLike[str]) -> None:
        """Copy a file of the sandbox to a local file."""
        await (await self._running(session_id)).files.download(remote, local)

    async def install(self, session_id: str, packages: Iterable[str]) -> ExecutionResult:
        """Install Python packages in the sandbox."""
        return await (await self._running(session_id)).install(*packages)

    async def cleanup_expired(self, max_idle: float | None = None) -> int:
        """Stop the sandboxes that were not used for so many seconds. Returns their number."""
        limit = self._max_idle if max_idle is None else max_idle
        now = _now()
        expired = [
            session_id
            for session_id in self._sessions
            if (now - self._infos[session_id].last_activity).total_seconds() >= limit
        ]
        for session_id in expired:
            await self.stop(session_id)
        return len(expired)

    def info(self, session_id: str) -> SandboxInfo | None:
        """Return what is known of the sandbox of a session, or None."""
        return self._infos.get(session_id)

    async def _running(self, session_id: str) -> Session:
        await self.start(session_id)
        return self._sessions[session_id]

    def _touch(self, session_id: str) -> SandboxInfo:
        info = replace(self._infos[session_id], status="running", last_activity=_now())
        self._infos[session_id] = info
        return info
