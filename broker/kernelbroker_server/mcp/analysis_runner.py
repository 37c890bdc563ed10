"""Runs the cells of an analysis in a session of the broker, if needed over several calls.

A client of 2026-07-28 whose person or model must be asked meanwhile gets an answer, and calls again. Then
nothing runs twice: the sealed state that it echoes names the cells that have run, whose results are in the
event store, and holds what the model has written. A task, too, only repeats results when it has ended.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from kernelbroker.analysis.cells import is_harness
from kernelbroker.protocol.errors import Unavailable
from kernelbroker.protocol.findings import Assessment
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker.results import ExecutionResult
from mcp.shared.exceptions import MCPError
from mcp_types import CreateMessageRequestParams, InputRequiredResult, SamplingMessage, TextContent

from ..service.tenant_service import TenantService
from ..sessions.session import Session
from ..sessions.store import ExecutionLog
from . import asking, cells, tasks
from .asking import State
from .call import Call
from .tool import ToolResult

_SAMPLED_TOKENS = 8192
_HARMLESS = Assessment(language="python", level="safe")


class Interrupted(Exception):
    """The call ends here with `answer`: the client must be asked, or the analysis goes on as a task."""

    def __init__(self, answer: ToolResult) -> None:
        super().__init__()
        self.answer = answer


class AnalysisRunner:
    """Runs or repeats the cells of one call.

    Attributes:
        can_be_task: whether the cell that follows the reading of the inputs is the last one for sure, so
            that it may become a task.
    """

    def __init__(self, call: Call, session: Session, confirm: str | None) -> None:
        self.session_id = session.id
        self.can_be_task = False
        self._call = call
        self._session = session
        self._confirm = confirm
        self._has_read = False
        self._ran: list[str] = []
        """The executions of this call."""
        state = asking.state_of(call)
        self._earlier = list(state.cells) if state else []
        """Those of earlier calls that have not been repeated yet."""
        self._texts = list(state.texts) if state else []
        """What the client's model has written."""
        self._asked = 0
        if state is not None and state.step == "sample":
            self._texts.append(asking.sampled(call))

    async def run(
        self, code: str, *, timeout: float | None = None, result_var: str | None = None
    ) -> ExecutionResult:
        executions, session = self._call.tenant.executions, self._session
        # The caller's code can begin like the harness, but is never the first cell.
        reads, self._has_read = not self._has_read and is_harness(code), True
        if self._earlier:
            self._ran.append(self._earlier.pop(0))
            return await _stored(self._call.tenant, self.session_id, self._ran[-1])
        request = ExecutionRequest(code=code, timeout=timeout, result_var=result_var)

        async def submit_with(confirm: str | None) -> ExecutionLog:
            request.confirm = confirm
            if reads:
                return executions.submit(session, request, assessment=_HARMLESS)
            assessment = await executions.assess_for(session, request)
            return executions.submit(session, request, assessment=assessment)

        log = await cells.submit(self._call, session, code, self._confirm, submit_with)
        if isinstance(log, InputRequiredResult):
            raise Interrupted(asking.with_progress(log, self._ran, self._texts))
        becomes_task = self.can_be_task and not reads and tasks.knows_tasks(self._call.ctx)
        for_s = self._call.options.task_after if becomes_task else None
        result = await cells.follow(self._call, session, log, for_s=for_s)
        if result is None:
            params = self._call.params
            begun = tasks.Begun(params.name, params.arguments or {}, self._ran)
            raise Interrupted(tasks.handle(self._call, self.session_id, log, begun))
        assert isinstance(result, ExecutionResult), "it may not ask for input"
        self._ran.append(log.id)
        return result

    def clients_model(self) -> Callable[[str], Awaitable[str]] | None:
        """The client's own model, if the client lends it."""
        call = self._call
        capabilities = call.ctx.session.client_capabilities
        if capabilities is None or capabilities.sampling is None:
            return None
        if call.is_modern:
            return self._sample_later
        return self._sample_now if call.ctx.session.can_send_request else None

    async def _sample_later(self, prompt: str) -> str:
        if self._asked == len(self._texts):
            params = CreateMessageRequestParams(
                messages=[_message(prompt)], max_tokens=_SAMPLED_TOKENS
            )
            state = State(
                step="sample", session=self.session_id, cells=self._ran, texts=self._texts
            )
            raise Interrupted(asking.model_later(params, state))
        self._asked += 1
        return self._texts[self._asked - 1]

    async def _sample_now(self, prompt: str) -> str:
        session = self._call.ctx.session
        try:
            with warnings.catch_warnings(
                action="ignore"
            ):  # deprecated, and all that older ones have
                sampled: Awaitable[Any] = session.create_message(
                    [_message(prompt)],
                    max_tokens=_SAMPLED_TOKENS,
                    related_request_id=self._call.ctx.request_id,
                )
            result = await sampled
        except MCPError as exc:
            raise Unavailable(f"the client's model wrote no code: {exc}; send `code`") from exc
        return asking.text_of(result)


class Replay:
    """Repeats the results of cells that have run, in place of a session."""

    def __init__(self, session_id: str, results: Sequence[ExecutionResult]) -> None:
        self.session_id = session_id
        self._results = iter(results)

    async def run(
        self,
        code: str,  # noqa: ARG002
        *,
        timeout: float | None = None,  # noqa: ARG002
        result_var: str | None = None,  # noqa: ARG002
    ) -> ExecutionResult:
        return next(self._results)


async def _stored(tenant: TenantService, session_id: str, execution_id: str) -> ExecutionResult:
    log = await tenant.executions.find(session_id, execution_id)
    return cells.result_of([stored.event for stored in log.read()])


def _message(prompt: str) -> SamplingMessage:
    return SamplingMessage(role="user", content=TextContent(text=prompt))
