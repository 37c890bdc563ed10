"""Runs requests in sandboxes that it opens when they are needed."""

from __future__ import annotations

import asyncio
import hashlib
import re
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, cast
from uuid import uuid4

from ..agent_workspace import AgentWorkspace
from ..client import Broker, connect
from ..protocol.errors import Conflict, KernelBrokerError, SessionGone
from ..protocol.findings import Language
from ..protocol.messages import SandboxLimits
from ..session import Session
from .models import MIB, ExecutionRequest, ExecutionResult, of_cell, refused

_ID = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
_TRIES = 3
_TYPES = {"container": "docker_simple", "gvisor": "docker_simple"}
"""The kind of sandbox by its isolation; all others are jails."""


@dataclass(slots=True)
class _Slot:
    """The session of one id.

    Attributes:
        name: the id, if it can be one.
        workspace: the name of its files; None if they are not kept.
        has_ended: a session of this name has ended.
    """

    name: str
    workspace: str | None
    session: Session | None = None
    limits: SandboxLimits | None = None
    has_ended: bool = False
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class SandboxManager:
    """Runs requests, those of one session in order. Use one manager in one event loop.

    Variables and files stay from request to request. The files stay also after `cleanup`, and after the
    broker has closed an idle session.

    Args:
        session_id: the session of requests that name none; a new one if not given. Any text.
        workspace: the workspace of this session, or its name; the session's id if not given. If neither is
            given, the files are removed with the session.
        broker: what `kernelbroker.connect` returns; a new one if not given.
        keep: `cleanup` leaves the sessions open, for other managers.
    """

    def __init__(
        self,
        session_id: str | None = None,
        workspace: str | AgentWorkspace | None = None,
        *,
        broker: Broker | None = None,
        keep: bool = False,
    ) -> None:
        self.session_id = session_id or uuid4().hex
        self.broker = broker or connect()
        self.workspace: str | None = None
        """The name of the files of the manager's session; None if they are not kept."""
        if isinstance(workspace, AgentWorkspace):
            self.workspace = workspace.name
        elif workspace or session_id:
            self.workspace = workspace or identifier(self.session_id)
        self._keep = keep
        self._slots: dict[str, _Slot] = {}

    async def execute(self, request: ExecutionRequest) -> ExecutionResult:
        """Run code. What the broker refuses is a result with `success` False, and no exception."""
        if (problem := request.problem) is not None:
            return refused(problem)
        slot = self._slot(request.session_id or self.session_id)
        async with slot.lock:
            try:
                return await self._run(slot, request)
            except KernelBrokerError as exc:
                return refused(str(exc))

    async def session(self) -> Session:
        """Return the open session of this manager. It stays the manager's."""
        slot = self._slot(self.session_id)
        async with slot.lock:
            return await self._opened(slot)

    async def cleanup(self) -> None:
        """Close the sessions that this manager has opened. Their files stay. It can be used again."""
        slots = list(self._slots.values())
        self._slots = {}
        for slot in slots:
            async with slot.lock:
                session, slot.session = slot.session, None
                if session is not None:
                    await session.close()

    async def get_stats(self) -> dict[str, int]:
        """Count the sandboxes that the broker has for this token: `total`, `busy`, `idle` and `max`.

        Raises:
            KernelBrokerError: the broker cannot be reached.
        """
        status = await self.broker.pool_status()
        templates: dict[str, dict[str, Any]] = status["templates"]
        return {
            "total": status["total_containers"],
            "busy": status["busy_containers"],
            "idle": status["idle_containers"],
            "max": sum(each["max_containers"] for each in templates.values()),
        }

    async def __aenter__(self) -> SandboxManager:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.cleanup()

    def _slot(self, session_id: str) -> _Slot:
        slot = self._slots.get(session_id)
        if slot is None:
            name = identifier(session_id)
            own = session_id == self.session_id
            slot = self._slots[session_id] = _Slot(name, self.workspace if own else name)
        return slot

    async def _run(self, slot: _Slot, request: ExecutionRequest) -> ExecutionResult:
        session = await self._opened(slot)
        template = None
        if request.sandbox_type is not None:
            template = await self._template_of(request.sandbox_type)
            if template is None:
                return refused(f"this broker has no sandbox of the type {request.sandbox_type}")
        limits = SandboxLimits(
            memory=max(1, int(request.max_memory_mb * MIB)),
            output=max(1, int(request.max_output_mb * MIB)),
        )
        if limits != slot.limits:
            await session.update(limits=limits)
            slot.limits = limits
        result = await session.run(
            request.code,
            language=cast(Language, request.language),
            timeout=request.timeout,
            template=template,
        )
        isolation = result.isolation or (session.info.isolation if session.info else "")
        return of_cell(result, result.sandbox or _TYPES.get(isolation, "subprocess"))

    async def _template_of(self, sandbox_type: str) -> str | None:
        """The template of a kind of sandbox; None if this broker has none."""
        route = (await self.broker.health()).get("routing", {}).get(sandbox_type)
        return None if route is None else str(route["template"])

    async def _opened(self, slot: _Slot) -> Session:
        """Return an open session; another one if the last one has ended."""
        gone: SessionGone | None = None
        for _ in range(_TRIES):
            if slot.session is None:
                # The broker does not open the id of an ended session again: its files go to another one.
                session_id = uuid4().hex if slot.has_ended else slot.name
                slot.limits = None
                slot.session = self.broker.session(
                    session_id,
                    template="auto",
                    workspace=slot.workspace,
                    workspace_retention=None if slot.workspace else 0,
                    keep=True if self._keep else None,
                )
            try:
                return await slot.session.open()
            except SessionGone as exc:
                gone, slot.session, slot.has_ended = exc, None, True
            except Conflict:
                slot.session = await self._joined(slot.session.session_id)
        assert gone is not None
        raise gone

    async def _joined(self, session_id: str) -> Session:
        """Return an open session that was opened otherwise, such as with another template."""
        for info in await self.broker.sessions():
            if info.session_id == session_id:
                return await self.broker.attach(session_id, keep=True)
        raise Conflict(
            f"the files of {session_id} are in use by another session; close it, or name another workspace"
        )


def identifier(text: str) -> str:
    """Return an id of the broker for any text; the text itself if it is one."""
    if _ID.fullmatch(text):
        return text
    return "agent-" + hashlib.sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:32]
