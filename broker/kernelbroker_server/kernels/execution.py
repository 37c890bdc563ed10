"""One execution as a state machine: Jupyter messages in, events out. No I/O, no clock.

An execution sends the user's cell and, where a variable was asked for, the report cell right behind
it. It ends when the shell reply *and* the iopub idle of every cell that it sent have come, matched by
parent id: output may follow the reply, and a reply may overtake the output. What comes in is hostile;
a message that is not of the shape its type asks for is dropped, and all that is kept is bounded.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from datetime import datetime
from typing import Any, TypeVar

import msgspec
from kernelbroker.protocol.errors import ProtocolError
from kernelbroker.protocol.events import (
    Cause,
    Clear,
    DataFrame,
    Display,
    ErrorDetail,
    Event,
    FileChange,
    Input,
    Result,
    Started,
    Stderr,
    Truncated,
    Variable,
)
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel import contract

from .failures import ErrorContent, failure, one_line, traceback_text
from .framing import MAX_WEIGHT, Incoming
from .outputs import DisplayContent, OutputLimits, Outputs, StreamContent
from .requests import REPORT_BYTES, Errand, cell, report_cell

_HELPER_BYTES = 6 * REPORT_BYTES
"""What is accepted from it, by weight: user code can send such messages as well."""
_MAX_INPUTS = 1000
_PROMPT_CHARS = 10_000
"""Apart from the output's budget: a cell whose question is not shown would wait for nothing."""

_T = TypeVar("_T")


class Phase(enum.Enum):
    SENT = "sent"
    STARTED = "started"
    ENDED = "ended"


class _Clear(msgspec.Struct):
    wait: bool = False


class _Status(msgspec.Struct):
    execution_state: str


class _ExecuteInput(msgspec.Struct):
    execution_count: int | None = None


class _InputRequest(msgspec.Struct):
    prompt: str = ""
    password: bool = False


class _Reply(ErrorContent):
    status: str = "error"
    execution_count: int | None = None
    payload: list[dict[str, Any]] = []


class _Summary(msgspec.Struct):
    execution_time: float | None = None
    variables: list[Variable] = []
    variables_dropped: int = 0
    files: list[FileChange] = []
    files_truncated: bool = False
    exit_code: int | None = None


class _Report(msgspec.Struct):
    dataframe: DataFrame | None = None
    return_value: Any = None
    truncated: str | None = None


class CellExecution:
    """One submitted cell.

    Send `outgoing`, feed every message to `receive`, pass on the events; after the `Result`, `phase`
    is ENDED and no event follows. `interrupted` tells it why an interrupt was sent; `end` ends it
    without the kernel. `clean` takes the secrets out of what is cut afterwards, or is not an event.

    Attributes:
        taken: the kernel has begun with it: an interrupt is meant for it from now on.
    """

    def __init__(
        self,
        request: ExecutionRequest,
        limits: OutputLimits,
        *,
        allow_stdin: bool = False,
        errand: Errand | None = None,
        clean: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        self.phase = Phase.SENT
        self.taken = False
        self._clean = clean
        self._limits = limits
        self._outputs = Outputs(limits)
        self._errand = errand
        self._cell = cell(request, limits, allow_stdin, errand)
        self._report_cell = report_cell(request) if request.result_var else None
        self.outgoing = [self._cell, *([self._report_cell] if self._report_cell else [])]
        self._awaited = {
            (message.msg_id, signal) for message in self.outgoing for signal in ("reply", "idle")
        }
        self._interruption: tuple[Cause, str] | None = None
        self._error: ErrorContent | None = None
        self._reply: _Reply | None = None
        self._execution_count: int | None = None
        self._inputs = 0
        self._times: list[str] = ["", ""]
        self._summary = _Summary()
        self._report: _Report | None = None

    def interrupted(self, cause: Cause, message: str) -> None:
        """An interrupt is on its way; if the cell fails now, that is why."""
        self._interruption = (cause, message)

    def receive(self, message: Incoming) -> list[Event]:
        """The events that a message brings; none for one that is malformed or not this cell's."""
        if self.phase is Phase.ENDED:
            return []
        try:
            events = self._receive(message)
        except ProtocolError:
            events = []
        if self.phase is Phase.SENT and (events or not self._awaited):
            self.phase = Phase.STARTED
            if not (events and isinstance(events[0], Started)):
                events.insert(0, Started(execution_count=self._execution_count))
        if not self._awaited:
            events.append(self._finish())
        return events

    def end(self, cause: Cause, name: str, message: str, *, restarted: bool) -> list[Event]:
        """End without the kernel's reply: it died, or is not waited for any longer."""
        if self.phase is Phase.ENDED:
            return []
        self.phase = Phase.ENDED
        return [
            Result(
                success=False,
                execution_count=self._execution_count,
                error=f"{name}: {message}",
                error_detail=ErrorDetail(name=name, value=message, cause=cause),
                truncated=self._cut(),
                kernel_restarted=restarted,
            )
        ]

    # One method for each way in.

    def _receive(self, message: Incoming) -> list[Event]:
        kind = message.header.msg_type
        mine = message.parent_id == self._cell.msg_id
        if message.channel == "iopub" and kind == "stream":
            # Of any parent: what a thread of an earlier cell prints now is seen now, not lost.
            return self._outputs.stream(message.content_as(StreamContent))
        if self._report_cell and message.parent_id == self._report_cell.msg_id:
            self._receive_report(message)
            return []
        if not mine:
            return []
        match message.channel, kind:
            case "iopub", "status":
                if message.content_as(_Status).execution_state == "idle":
                    self._awaited.discard((self._cell.msg_id, "idle"))
                else:
                    self._times[0] = message.header.date
                    self.taken |= self._errand is not None and self._errand.silent
                return []
            case "iopub", "execute_input":
                self.taken = True
                self._execution_count = message.content_as(_ExecuteInput).execution_count
                if self.phase is Phase.STARTED:  # a thread of an earlier cell printed first
                    return []
                return [Started(execution_count=self._execution_count)]
            case "iopub", "display_data" | "execute_result" | "update_display_data":
                return self._display(message, kind)
            case "iopub", "error":
                self._error = self._clean(message.content_as(ErrorContent))
                return self._outputs.text(Stderr, traceback_text(self._error))
            case "iopub", "clear_output":
                return self._outputs.rich(Clear(wait=message.content_as(_Clear).wait), 0)
            case "stdin", "input_request":
                return self._input(message.content_as(_InputRequest))
            case "shell", "execute_reply":
                return self._replied(message)
        return []

    def _receive_report(self, message: Incoming) -> None:
        assert self._report_cell is not None
        match message.channel, message.header.msg_type:
            case "iopub", "status":
                if message.content_as(_Status).execution_state == "idle":
                    self._awaited.discard((self._report_cell.msg_id, "idle"))
            case "iopub", "display_data":
                if message.weight > _HELPER_BYTES:
                    self._report = _Report(truncated="the report was too large to send")
                    return
                data = message.content_as(DisplayContent).data
                if contract.REPORT_MIME in data:
                    self._report = _convert(data[contract.REPORT_MIME], _Report)
                elif contract.DROPPED_MIME in data:
                    self._report = _Report(truncated="the report was too large to send")
            case "shell", "execute_reply":
                self._awaited.discard((self._report_cell.msg_id, "reply"))

    def _replied(self, message: Incoming) -> list[Event]:
        self._awaited.discard((self._cell.msg_id, "reply"))
        self._times[1] = message.header.date
        try:
            self._reply = self._clean(message.content_as(_Reply))
        except ProtocolError:  # an exception can say what its traceback is; the cell has ended
            self._reply = _Reply()
        self._execution_count = self._reply.execution_count or self._execution_count
        pages = [item.get("data") for item in self._reply.payload if item.get("source") == "page"]
        return [
            event  # what `name?` shows
            for data in pages
            if isinstance(data, dict)
            for event in self._outputs.rich(Display(data=data), message.weight)
        ]

    def _input(self, request: _InputRequest) -> list[Event]:
        if self._inputs >= _MAX_INPUTS:
            return []
        self._inputs += 1
        return [Input(prompt=request.prompt[:_PROMPT_CHARS], password=request.password)]

    def _display(self, message: Incoming, kind: str) -> list[Event]:
        if message.weight > MAX_WEIGHT:
            self._outputs.truncated.rich_outputs += 1
            return []
        content = message.content_as(DisplayContent)
        if contract.SUMMARY_MIME in content.data:
            if message.weight <= _HELPER_BYTES:
                self._summary = _convert(content.data[contract.SUMMARY_MIME], _Summary)
            return []
        if self._errand is not None and contract.ERRAND_MIME in content.data:
            self._errand.on_answer(self._clean(content.data[contract.ERRAND_MIME]))
            return []
        update = kind == "update_display_data"
        return self._outputs.display(content, message.weight, update=update)

    # The end.

    def _finish(self) -> Result:
        self.phase = Phase.ENDED
        reply = self._reply or _Reply()
        success = reply.status == "ok"
        detail = (
            None if success else failure(self._error or reply, reply.status, self._interruption)
        )
        truncated = self._outputs.truncated
        truncated.variables = self._summary.variables_dropped
        truncated.files = self._summary.files_truncated
        report = self._report or _Report()
        if success and self._report_cell and self._report is None:
            report.truncated = "the kernel sent no report"  # the cell has disabled what it takes
        truncated.report = report.truncated
        return Result(
            success=success,
            execution_count=self._execution_count,
            execution_time=self._execution_time(),
            error=one_line(detail) if detail else None,
            error_detail=detail,
            dataframe=report.dataframe,
            return_value=report.return_value,
            variables=self._summary.variables[: self._limits.max_variables],
            files=self._summary.files,
            exit_code=self._summary.exit_code,
            truncated=self._cut(),
        )

    def _execution_time(self) -> float | None:
        """The helper's measure; where user code removed the helper, from the messages' own dates."""
        if self._summary.execution_time is not None:
            return self._summary.execution_time
        try:
            begin, end = (datetime.fromisoformat(date) for date in self._times)
            return max(0.0, (end - begin).total_seconds())
        except (ValueError, TypeError):
            return None

    def _cut(self) -> Truncated | None:
        truncated = self._outputs.truncated
        return truncated if truncated != Truncated() else None


def _convert(value: Any, type_: type[_T]) -> _T:
    """User code can send this MIME type as well; what does not fit counts for nothing."""
    try:
        return msgspec.convert(value, type_)
    except (msgspec.ValidationError, UnicodeError):  # the latter for a key with a lone surrogate
        return type_()
