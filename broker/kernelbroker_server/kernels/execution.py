"""One execution as a state machine: Jupyter messages in, events out. No I/O, no clock.

An execution sends the user's cell and, if a variable was asked for, the report cell behind it. It ends
when the shell reply *and* the iopub idle of each of these cells have come, matched by parent id: output
may follow the reply, and a reply may overtake the output. Messages are hostile: one of the wrong shape
is dropped, and everything that is kept is bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from kernelbroker.protocol.codec import decode_as
from kernelbroker.protocol.errors import ProtocolError
from kernelbroker.protocol.events import (
    Cause,
    Clear,
    ErrorDetail,
    Event,
    Input,
    Result,
    Started,
    Truncated,
)
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel import contract

from .cell_state import CellState, Phase, Reply, Report, Summary
from .failures import (
    ErrorContent,
    bounded_name_and_value,
    failure,
    one_line,
    traceback_text,
)
from .framing import MAX_WEIGHT, Incoming
from .outputs import DisplayContent, OutputLimits, Outputs, StreamContent
from .requests import REPORT_BYTES, InternalCell, NotebookCell, cell, report_cell, with_option

_MAX_REPORT_WEIGHT = 6 * REPORT_BYTES
_MAX_SUMMARY_WEIGHT = 6 * 1024**2
"""The weight of a report or summary that is accepted; user code can send these messages as well."""
_MAX_INPUTS = 1000
_PROMPT_CHARS = 10_000
"""Prompts do not count as output: without its prompt a cell would wait for an answer in vain."""

_T = TypeVar("_T")


class _Clear(msgspec.Struct):
    wait: bool = False


class _Status(msgspec.Struct):
    execution_state: str


class _ExecuteInput(msgspec.Struct):
    execution_count: int | None = None


class _InputRequest(msgspec.Struct):
    prompt: str = ""
    password: bool = False


class _ReplyMetadata(msgspec.Struct):
    summary: Summary = msgspec.field(default_factory=Summary, name=contract.METADATA_KEY)


class CellExecution:
    """One submitted cell.

    Send `outgoing`, pass each message to `receive`, and emit the events that it returns. After the
    `Result`, `phase` is ENDED and no event follows. Call `interrupted` when an interrupt is sent, and
    `end` to end the execution without its kernel. `clean` masks secrets before a text is cut,
    `clean_beginning` in one that was cut.

    Attributes:
        state: what it has learned. An execution that begins with the state of another goes on as that.
        outgoing: the requests.
        is_silent: the kernel shows nothing of the cell.
    """

    def __init__(
        self,
        request: ExecutionRequest,
        limits: OutputLimits,
        *,
        allow_stdin: bool = False,
        internal_cell: InternalCell | None = None,
        notebook_cell: NotebookCell | None = None,
        clean: Callable[[Any], Any] = lambda value: value,
        clean_beginning: Callable[[str], str] = lambda text: text,
        state: CellState | None = None,
    ) -> None:
        self._clean = clean
        self._limits = limits
        self._internal_cell = internal_cell
        self.is_silent = (internal_cell is not None and internal_cell.silent) or (
            notebook_cell is not None and notebook_cell.silent
        )
        cells = [cell(request, limits, allow_stdin, internal_cell, notebook_cell)]
        if request.result_var:
            cells.append(report_cell(request))
        if state is None:
            ids = tuple(each.msg_id for each in cells)
            awaited = {(each, signal) for each in ids for signal in ("reply", "idle")}
            state = CellState(ids, awaited, int(limits.max_output_size))
        self.state = state
        self.outgoing = [
            replace(each, msg_id=msg_id) for each, msg_id in zip(cells, state.ids, strict=True)
        ]
        self._cell_id, self._report_id = state.ids[0], state.ids[1] if state.ids[1:] else None
        self._outputs = Outputs(limits, clean_beginning, state)

    def add_option(self, name: str, value: Any) -> None:
        """Add an option for the kernel's hooks to the cell's request, before it is sent."""
        self.outgoing[0] = with_option(self.outgoing[0], name, value)

    @property
    def phase(self) -> Phase:
        return self.state.phase

    @property
    def taken(self) -> bool:
        """Whether the kernel has begun to run the cell, so that an interrupt reaches it."""
        return self.state.taken

    def interrupted(self, cause: Cause, message: str) -> None:
        """Record that an interrupt is being sent. This is the reason of the cell's end then."""
        if self.state.reply is None:
            self.state.interruption = (cause, message)

    def receive(self, message: Incoming) -> list[Event]:
        """Return the events that a message causes; none if it is malformed or belongs to another cell."""
        if self.phase is Phase.ENDED:
            return []
        try:
            events = self._receive(message)
        except ProtocolError:
            events = []
        if self.phase is Phase.SENT and (events or not self.state.awaited):
            self.state.phase = Phase.STARTED
            if not (events and isinstance(events[0], Started)):
                events.insert(0, Started(execution_count=self.state.execution_count))
        if not self.state.awaited:
            events.append(self._finish())
        return events

    def end(self, cause: Cause, name: str, message: str, *, restarted: bool) -> list[Event]:
        """End the execution without the kernel's reply, for example because the kernel died."""
        if self.phase is Phase.ENDED:
            return []
        self.state.phase = Phase.ENDED
        return [
            Result(
                success=False,
                execution_count=self.state.execution_count,
                error=f"{name}: {message}",
                error_detail=ErrorDetail(name=name, value=message, cause=cause),
                truncated=self._cut(),
                kernel_restarted=restarted,
            )
        ]

    def _receive(self, message: Incoming) -> list[Event]:
        kind = message.header.msg_type
        mine = message.parent_id == self._cell_id
        if message.channel == "iopub" and kind == "stream":
            # Of any parent, so that output of an earlier cell's thread is not lost.
            return [*self._outputs.stream(message.content_as(StreamContent))]
        if message.parent_id == self._report_id:
            self._receive_report(message)
            return []
        if not mine:
            return []
        match message.channel, kind:
            case "iopub", "status":
                if message.content_as(_Status).execution_state == "idle":
                    self.state.awaited.discard((self._cell_id, "idle"))
                else:
                    self.state.times[0] = message.header.date
                    self.state.taken |= self.is_silent
                return []
            case "iopub", "execute_input":
                self.state.taken = True
                self.state.times[0] = self.state.times[0] or message.header.date
                self.state.execution_count = message.content_as(_ExecuteInput).execution_count
                if self.phase is Phase.STARTED:  # after output of an earlier cell's thread
                    return []
                return [Started(execution_count=self.state.execution_count)]
            case "iopub", "display_data" | "execute_result" | "update_display_data":
                return self._display(message, kind)
            case "iopub", "error":
                self.state.error = self._clean(message.content_as(ErrorContent))
                text = traceback_text(self.state.error)
                return self._outputs.traceback(text, *bounded_name_and_value(self.state.error))
            case "iopub", "clear_output":
                return self._outputs.rich(Clear(wait=message.content_as(_Clear).wait), 0)
            case "stdin", "input_request":
                return self._input(message.content_as(_InputRequest))
            case "shell", "execute_reply":
                return self._replied(message)
        return []

    def _receive_report(self, message: Incoming) -> None:
        assert self._report_id is not None
        match message.channel, message.header.msg_type:
            case "iopub", "status":
                if message.content_as(_Status).execution_state == "idle":
                    self.state.awaited.discard((self._report_id, "idle"))
            case "iopub", "display_data":
                if message.weight > _MAX_REPORT_WEIGHT:
                    self.state.report = Report(truncated="the report was too large to send")
                    return
                data = message.content_as(DisplayContent).data
                if contract.REPORT_MIME in data:
                    self.state.report = _convert(data[contract.REPORT_MIME], Report)
                elif contract.DROPPED_MIME in data:
                    self.state.report = Report(truncated="the report was too large to send")
            case "shell", "execute_reply":
                self.state.awaited.discard((self._report_id, "reply"))

    def _replied(self, message: Incoming) -> list[Event]:
        self.state.awaited.discard((self._cell_id, "reply"))
        self.state.times[1] = message.header.date
        self.state.summary = _summary_of(message)
        try:
            self.state.reply = self._clean(message.content_as(Reply))
        except ProtocolError:  # a traceback can be of any type; the cell has ended in any case
            self.state.reply = Reply()
        self.state.execution_count = self.state.reply.execution_count or self.state.execution_count
        pages = [
            item.get("data") for item in self.state.reply.payload if item.get("source") == "page"
        ]
        return [
            event  # shown by `name?`
            for data in pages
            if isinstance(data, dict)
            for event in self._outputs.display(DisplayContent(data=data))
        ]

    def _input(self, request: _InputRequest) -> list[Event]:
        if self.state.inputs >= _MAX_INPUTS:
            return []
        self.state.inputs += 1
        return [Input(prompt=request.prompt[:_PROMPT_CHARS], password=request.password)]

    def _display(self, message: Incoming, kind: str) -> list[Event]:
        if message.weight > MAX_WEIGHT:
            self.state.truncated.rich_outputs += 1
            return []
        content = message.content_as(DisplayContent)
        if self._internal_cell is not None and contract.INTERNAL_CELL_MIME in content.data:
            self._internal_cell.on_answer(self._clean(content.data[contract.INTERNAL_CELL_MIME]))
            return []
        return self._outputs.display(
            content,
            is_result=kind == "execute_result",
            update=kind == "update_display_data",
        )

    def _finish(self) -> Result:
        self.state.phase = Phase.ENDED
        reply = self.state.reply or Reply()
        # A cell can swallow an interrupt, or fail with another error.
        success = reply.status == "ok" and self.state.interruption is None
        detail = (
            None
            if success
            else failure(self.state.error or reply, reply.status, self.state.interruption)
        )
        truncated = self.state.truncated
        truncated.variables = self.state.summary.variables_dropped
        truncated.files = self.state.summary.files_truncated
        report = self.state.report or Report()
        if success and self._report_id and self.state.report is None:
            report.truncated = "the kernel sent no report"  # user code has disabled the report
        truncated.report = report.truncated
        return Result(
            success=success,
            execution_count=self.state.execution_count,
            execution_time=self._execution_time(),
            error=one_line(detail) if detail else None,
            error_detail=detail,
            dataframe=report.dataframe,
            return_value=report.return_value,
            variables=self.state.summary.variables[: self._limits.max_variables],
            files=self.state.summary.files,
            exit_code=self.state.summary.exit_code,
            removed=[] if success else self.state.summary.removed[: self._limits.max_variables],
            truncated=self._cut(),
        )

    def _execution_time(self) -> float | None:
        """Return the time that the hooks measured. If user code removed them, use the dates of messages."""
        if self.state.summary.execution_time is not None:
            return self.state.summary.execution_time
        try:
            begin, end = (datetime.fromisoformat(date) for date in self.state.times)
            return max(0.0, (end - begin).total_seconds())
        except (ValueError, TypeError):
            return None

    def _cut(self) -> Truncated | None:
        truncated = self.state.truncated
        return truncated if truncated != Truncated() else None


def _summary_of(reply: Incoming) -> Summary:
    """The summary of the hooks, which user code can remove or replace."""
    if reply.metadata_weight > _MAX_SUMMARY_WEIGHT:
        return Summary()
    try:
        return decode_as(reply.metadata, _ReplyMetadata).summary
    except ProtocolError:
        return Summary()


def _convert(value: Any, type_: type[_T]) -> _T:
    """User code can send this MIME type as well. A payload of another shape is ignored."""
    try:
        return msgspec.convert(value, type_)
    except (msgspec.ValidationError, UnicodeError):  # UnicodeError: a key with a lone surrogate
        return type_()
