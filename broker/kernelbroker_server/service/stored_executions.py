"""Use cases of executions that were accepted: find, list, interrupt, answer."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import msgspec
from kernelbroker.protocol.errors import Conflict, NotFound, SessionGone
from kernelbroker.protocol.events import Input
from kernelbroker.protocol.messages import ExecutionRequest

from ..kernels.channel import ChannelClosed
from ..sessions.registry import Registry
from ..sessions.session import Session
from ..sessions.store import EventStore, ExecutionLog, ExecutionSummary


class StoredExecutions:
    """The executions that one tenant has submitted, of open sessions and of those that have ended."""

    def __init__(self, registry: Registry, store: EventStore) -> None:
        self._registry = registry
        self._store = store
        self._tenant = registry.tenant.name

    async def find(self, session_id: str, execution_id: str) -> ExecutionLog:
        """Return an execution of an open session, or of one that has ended.

        Raises:
            NotFound, SessionGone, Unavailable
        """
        try:
            return self._registry.get(session_id).execution(execution_id)
        except (NotFound, SessionGone):
            log = await self._store.past_execution(self._tenant, session_id, execution_id)
            if log is None:
                raise
            return log

    async def list(self, session_id: str) -> Sequence[ExecutionLog | ExecutionSummary]:
        """Return the executions of an open session, or of all with this id if none is open.

        Raises:
            NotFound, SessionGone, Unavailable
        """
        try:
            return list(self._registry.get(session_id).executions.values())
        except (NotFound, SessionGone):
            found = await self._store.past_executions(self._tenant, session_id)
            if not found and await self._store.closed_reason(self._tenant, session_id) is None:
                raise
            return found

    async def locate(self, execution_id: str) -> tuple[str, ExecutionLog]:
        """Return an execution of any session, and the id of the session; the latest with this id.

        Raises:
            NotFound, Unavailable
        """
        session_id = await self._store.session_of(self._tenant, execution_id)
        if session_id is not None:
            log = await self._store.past_execution(self._tenant, session_id, execution_id)
            if log is not None:
                return session_id, log
        raise NotFound(
            f"there is no execution {execution_id}: check its id. An execution is kept for a time "
            "after the end of its session (the setting sessions.result_retention)"
        )

    async def interrupt(self, execution_id: str) -> None:
        """Interrupt an execution, or take it out of the queue. Does nothing if it has ended.

        Raises:
            as `locate`.
        """
        session_id, log = await self.locate(execution_id)
        if log.result is None:
            with contextlib.suppress(NotFound, SessionGone):
                self._registry.get(session_id).interrupt(execution_id)

    async def answer(self, execution_id: str, value: str, session_id: str | None = None) -> None:
        """Answer `input()` in an execution.

        Raises:
            NotFound: there is no such execution.
            Conflict: it does not wait for input.
        """
        if session_id is None:
            session_id, _ = await self.locate(execution_id)
        try:
            session = await self._registry.resolve(session_id)
            events = session.execution(execution_id).read()
            # The kernel drops what comes before it asks.
            if not any(isinstance(each.event, Input) for each in events):
                raise Conflict("the execution does not wait for input")
            await session.answer(execution_id, value)
        except (ChannelClosed, SessionGone):
            raise Conflict("the execution has ended and does not wait for input") from None


def known(session: Session, request: ExecutionRequest) -> ExecutionLog | None:
    """Return the execution of an earlier, equal request. Raises Conflict if the id is taken."""
    if request.execution_id is None:
        return None
    try:
        earlier = session.execution(request.execution_id)
    except NotFound:
        return None
    if earlier.request != without_confirmation(request):
        raise Conflict(
            f"execution {request.execution_id} is another one; choose a new execution_id"
        )
    return earlier


def without_confirmation(request: ExecutionRequest) -> ExecutionRequest:
    """Return the request as it is compared with earlier ones."""
    return msgspec.structs.replace(request, confirm=None)
