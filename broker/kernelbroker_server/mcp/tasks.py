"""Long cells as tasks: the extension `io.modelcontextprotocol/tasks`.

https://modelcontextprotocol.github.io/ext-tasks/specification/2026-07-28/tasks.html

A task is an execution. Its id names the session and the execution, and its state is that of the execution
in the event store, so it survives what that survives, also a restart of the broker. What the store does not
know is kept beside it, as entries: that the task was cancelled, which question was answered, and the call
of an analysis, whose answer is made of the results of several executions.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeAlias

import msgspec
from kernelbroker.protocol.codec import decode_json, encode
from kernelbroker.protocol.errors import NotFound, RequestError, SessionGone
from kernelbroker.protocol.events import Event, Input, Stderr, Stdout
from kernelbroker.results import ExecutionResult
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    ElicitRequest,
    ElicitResult,
    InputResponses,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from ..service.tenant_service import TenantService
from ..sessions.store import Entry, EventStore, ExecutionLog
from . import cells
from .answers import of_execution
from .call import Call, Options, tenant_of
from .cells import LAST_VALUE

EXTENSION = "io.modelcontextprotocol/tasks"
_POLL_MS = 1_000
_STATUS_CHARS = 200
_ENTRY = "mcp_task"
_CANCELLED, _ANSWERED, _BEGUN = "cancelled", "answered", "begun"


class Begun(msgspec.Struct):
    """The call of an analysis, of which the last execution has become a task.

    Attributes:
        cells: the executions before that one.
    """

    tool: str
    arguments: dict[str, Any]
    cells: list[str]


Replay: TypeAlias = Callable[
    [Begun, Sequence[ExecutionResult], str, Options], Awaitable[CallToolResult]
]
"""Makes the result of such a call from the results of all its executions, in a session."""


class GetParams(RequestParams):
    task_id: str


class UpdateParams(GetParams):
    input_responses: InputResponses = {}


def knows_tasks(ctx: ServerRequestContext[Any, Any]) -> bool:
    """Whether the client has declared the extension for this request."""
    capabilities = ctx.session.client_capabilities
    extensions = (capabilities.extensions if capabilities else None) or {}
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS and EXTENSION in extensions


def task_id_of(session_id: str, log: ExecutionLog) -> str:
    """Return the id of the task for an execution."""
    return f"{session_id}.{log.id}"


def handle(
    call: Call, session_id: str, log: ExecutionLog, begun: Begun | None = None
) -> dict[str, Any]:
    """Return the answer to a call that goes on as a task."""
    task = Task(call.tenant, call.store, call.options, task_id_of(session_id, log), log)
    if begun is not None:
        task.remember_call(begun)
    return {"resultType": "task", **task.seed()}


class Task:
    """One execution as a task."""

    def __init__(
        self,
        tenant: TenantService,
        store: EventStore,
        options: Options,
        task_id: str,
        log: ExecutionLog,
    ) -> None:
        self.id = task_id
        self._tenant = tenant
        self._store = store
        self._options = options
        self._log = log

    @classmethod
    async def find(
        cls, tenant: TenantService, store: EventStore, options: Options, task_id: str
    ) -> Task:
        """Return the task with this id. Raises MCPError if the tenant has none."""
        session_id, _, execution_id = task_id.rpartition(".")
        try:
            log = await tenant.executions.find(session_id, execution_id)
        except (NotFound, SessionGone):
            raise MCPError(INVALID_PARAMS, f"there is no task {task_id[:200]!r}") from None
        except RequestError as exc:
            raise MCPError(INVALID_PARAMS, exc.message) from exc
        return cls(tenant, store, options, task_id, log)

    @property
    def session_id(self) -> str:
        return self.id.rpartition(".")[0]

    def seed(self) -> dict[str, Any]:
        """The fields that are known when the task begins."""
        status, message = self._status()
        result = self._log.result
        updated = time.time()
        if result is not None:
            lasted = (self._log.queued_s or 0.0) + (result.execution_time or 0.0)
            updated = self._log.accepted_at + lasted
        return {
            "taskId": self.id,
            "status": status,
            "statusMessage": message,
            "createdAt": _iso(self._log.accepted_at),
            "lastUpdatedAt": _iso(updated),
            "ttlMs": int(self._options.task_ttl * 1000),
            "pollIntervalMs": _POLL_MS,
        }

    def remember_call(self, begun: Begun) -> None:
        """Keep the call of an analysis, until the task has its result."""
        self._remember(_BEGUN, encode(begun).decode())

    async def state(self, replay: Replay) -> dict[str, Any]:
        """All fields, with the result or the question."""
        fields = self.seed()
        if fields["status"] == "completed":
            fields["result"] = _dump(await self._result(replay))
        elif fields["status"] == "input_required":
            question = self._question()
            assert question is not None, "it is the reason of the status"
            request = ElicitRequest(params=cells.input_question(question))
            fields["inputRequests"] = {_key(question): _dump(request)}
        return fields

    async def update(self, responses: Mapping[str, Any]) -> None:
        """Take the person's responses. Those to older questions are ignored."""
        question = self._question()
        response = None if question is None else responses.get(_key(question))
        if question is None or not isinstance(response, ElicitResult):
            return
        self._remember(_ANSWERED, str(question.seq))
        with contextlib.suppress(NotFound, SessionGone):
            session = await self._tenant.sessions.resolve(self.session_id)
            await cells.answer(session, self._log, response)

    async def cancel(self) -> None:
        """Interrupt the cell, or take it out of the queue. Does nothing if it has ended."""
        if self._log.result is not None:
            return
        self._remember(_CANCELLED, "yes")
        with contextlib.suppress(NotFound, SessionGone):
            cells.interrupt(await self._tenant.sessions.resolve(self.session_id), self._log.id)

    def _status(self) -> tuple[str, str]:
        """The status, and a line on how far the cell is."""
        if self._recall(_CANCELLED) is not None:
            return "cancelled", "The cell was interrupted."
        result = self._log.result
        if result is not None:
            return "completed", result.error or "The cell has ended."
        if (question := self._question()) is not None:
            return "input_required", question.prompt or "The code asks for input."
        if self._log.state == "queued":
            return "working", "The cell waits for its turn."
        return "working", _last_line(self._events()) or "The cell runs."

    def _question(self) -> Input | None:
        """The question that the cell waits for."""
        events = self._events()
        if self._log.result is not None or not events or not isinstance(events[-1], Input):
            return None
        answered = int(self._recall(_ANSWERED) or 0)
        return events[-1] if events[-1].seq > answered else None

    async def _result(self, replay: Replay) -> CallToolResult:
        result = cells.result_of(self._events())
        if (kept := self._recall(_BEGUN)) is not None:
            begun = decode_json(kept, Begun)
            earlier = [await self._earlier(each) for each in begun.cells]
            return await replay(begun, [*earlier, result], self.session_id, self._options)
        is_last_value = self._log.request.result_var == LAST_VALUE
        kind = ""
        with contextlib.suppress(NotFound, SessionGone):  # the session may have ended
            kind = (await self._tenant.sessions.resolve(self.session_id)).sandbox_type
        return of_execution(self.session_id, result, kind, is_last_value=is_last_value)

    async def _earlier(self, execution_id: str) -> ExecutionResult:
        log = await self._tenant.executions.find(self.session_id, execution_id)
        return cells.result_of([stored.event for stored in log.read()])

    def _events(self) -> list[Event]:
        return [stored.event for stored in self._log.read()]

    def _recall(self, what: str) -> str | None:
        entry = self._store.entry(_ENTRY, self._tenant.name, f"{self.id}:{what}")
        return None if entry is None else entry.value.decode()

    def _remember(self, what: str, value: str) -> None:
        until = time.time() + 2 * self._options.task_ttl
        name = f"{self.id}:{what}"
        self._store.put_entry(Entry(_ENTRY, self._tenant.name, name, value.encode(), until))


def add_tasks(server: Server[Any], store: EventStore, options: Options, replay: Replay) -> None:
    """Let a server serve tasks."""

    async def find(ctx: ServerRequestContext[Any, Any], params: GetParams) -> Task:
        if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            raise MCPError(METHOD_NOT_FOUND, "Method not found", ctx.method)
        if not knows_tasks(ctx):
            data: dict[str, Any] = {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}
            message = "Missing required client capability"
            raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, data)
        return await Task.find(tenant_of(ctx), store, options, params.task_id)

    async def get(ctx: ServerRequestContext[Any, Any], params: GetParams) -> dict[str, Any]:
        return await (await find(ctx, params)).state(replay)

    async def update(ctx: ServerRequestContext[Any, Any], params: UpdateParams) -> dict[str, Any]:
        await (await find(ctx, params)).update(params.input_responses)
        return {}

    async def cancel(ctx: ServerRequestContext[Any, Any], params: GetParams) -> dict[str, Any]:
        await (await find(ctx, params)).cancel()
        return {}

    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", GetParams, get)
    server.add_request_handler("tasks/update", UpdateParams, update)
    server.add_request_handler("tasks/cancel", GetParams, cancel)


def _key(question: Input) -> str:
    return f"input-{question.seq}"


def _last_line(events: list[Event]) -> str:
    """The last line of the output."""
    for event in reversed(events):
        if isinstance(event, Stdout | Stderr) and (text := event.content.strip()):
            return text[-_STATUS_CHARS * 10 :].splitlines()[-1][-_STATUS_CHARS:]
    return ""


def _dump(model: Any) -> Any:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True)


def _iso(timestamp: float) -> str:
    return datetime.fromtimestamp(timestamp, UTC).isoformat(timespec="milliseconds")
