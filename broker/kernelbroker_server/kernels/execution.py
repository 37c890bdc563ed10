"""One execution as a state machine: Jupyter messages in, events out. No I/O, no clock.

An execution sends the user's cell and, where a variable was asked for, the report cell right behind
it. It ends when the shell reply *and* the iopub idle of every cell that it sent have come, matched by
parent id: output may follow the reply, and a reply may overtake the output. What comes in is hostile;
a message that is not of the shape its type asks for is dropped, and all that is kept is bounded.
"""

from __future__ import annotations

import base64
import binascii
import enum
import re
from dataclasses import dataclass
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
    Image,
    Input,
    Result,
    Started,
    Stderr,
    Stdout,
    Truncated,
    Variable,
)
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel import contract

from .framing import Incoming, Outgoing

_EVENT_OVERHEAD = 100
"""Bytes that an event costs besides its content, so that a million tiny outputs are bounded too."""
_REPORT_BYTES = 1024 * 1024
_ERROR_LINE_CHARS = 1000
_ERROR_VALUE_CHARS = 10_000
_TRACEBACK_LINES = 200
_TRACEBACK_CHARS = 100_000

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])")
_IMAGE_MIMES = ("image/png", "image/jpeg", "image/gif", "image/webp", "image/svg+xml")


_T = TypeVar("_T")


class Phase(enum.Enum):
    SENT = "sent"
    STARTED = "started"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class OutputLimits:
    """Sizes in bytes."""

    max_output_size: int = 10 * 1024**2
    max_event_size: int = 1024**2
    max_variables: int = 100


class _Stream(msgspec.Struct):
    name: str
    text: str


class _Display(msgspec.Struct):
    data: dict[str, Any]
    metadata: dict[str, Any] = {}
    transient: dict[str, Any] = {}


class _Clear(msgspec.Struct):
    wait: bool = False


class _Status(msgspec.Struct):
    execution_state: str


class _ExecuteInput(msgspec.Struct):
    execution_count: int | None = None


class _InputRequest(msgspec.Struct):
    prompt: str = ""
    password: bool = False


class _Error(msgspec.Struct):
    ename: str = ""
    evalue: str = ""
    traceback: list[str] = []


class _Reply(_Error):
    status: str = "error"
    execution_count: int | None = None
    payload: list[dict[str, Any]] = []


class _Summary(msgspec.Struct):
    execution_time: float | None = None
    variables: list[Variable] = []
    variables_dropped: int = 0
    files: list[FileChange] = []
    files_truncated: bool = False


class _Report(msgspec.Struct):
    dataframe: DataFrame | None = None
    return_value: Any = None
    truncated: str | None = None


class CellExecution:
    """One submitted cell.

    Send `outgoing`, feed every message to `receive`, pass on the events; after the `Result`, `phase`
    is ENDED and no event follows. `interrupted` tells it why an interrupt was sent; `end` ends it
    without the kernel.
    """

    def __init__(
        self, request: ExecutionRequest, limits: OutputLimits, *, allow_stdin: bool = False
    ) -> None:
        self.phase = Phase.SENT
        self._limits = limits
        self._budget = limits.max_output_size
        self._cell = _cell(request, limits, allow_stdin)
        self._report_cell = _report_cell(request) if request.result_var else None
        self.outgoing = [self._cell, *([self._report_cell] if self._report_cell else [])]
        self._awaited = {
            (message.msg_id, signal) for message in self.outgoing for signal in ("reply", "idle")
        }
        self._interruption: tuple[Cause, str] | None = None
        self._error: _Error | None = None
        self._reply: _Reply | None = None
        self._execution_count: int | None = None
        self._times: list[str] = ["", ""]
        self._summary = _Summary()
        self._report = _Report()
        self._truncated = Truncated()

    @property
    def cell_ended(self) -> bool:
        """Whether the user's code has run; what may remain is the report."""
        return self._reply is not None

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
            return []
        if events and self.phase is Phase.SENT:
            self.phase = Phase.STARTED
            if not isinstance(events[0], Started):
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
            return self._stream(message.content_as(_Stream))
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
                return []
            case "iopub", "execute_input":
                self._execution_count = message.content_as(_ExecuteInput).execution_count
                return [Started(execution_count=self._execution_count)]
            case "iopub", "display_data" | "execute_result" | "update_display_data":
                return self._display(message)
            case "iopub", "error":
                self._error = message.content_as(_Error)
                return self._text(Stderr, _traceback_text(self._error))
            case "iopub", "clear_output":
                return [Clear(wait=message.content_as(_Clear).wait)]
            case "stdin", "input_request":
                request = message.content_as(_InputRequest)
                return [Input(prompt=request.prompt, password=request.password)]
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
                data = message.content_as(_Display).data
                if contract.REPORT_MIME in data:
                    self._report = _convert(data[contract.REPORT_MIME], _Report)
                elif contract.DROPPED_MIME in data:
                    self._report = _Report(truncated="the report was too large to send")
            case "shell", "execute_reply":
                self._awaited.discard((self._report_cell.msg_id, "reply"))

    def _replied(self, message: Incoming) -> list[Event]:
        self._awaited.discard((self._cell.msg_id, "reply"))
        self._times[1] = message.header.date
        self._reply = message.content_as(_Reply)
        self._execution_count = self._reply.execution_count or self._execution_count
        pages = [item.get("data") for item in self._reply.payload if item.get("source") == "page"]
        return [
            event  # what `name?` shows
            for data in pages
            if isinstance(data, dict)
            for event in self._rich(Display(data=data), len(message.content))
        ]

    # Outputs.

    def _stream(self, stream: _Stream) -> list[Event]:
        return self._text(Stderr if stream.name == "stderr" else Stdout, stream.text)

    def _text(self, kind: type[Stdout] | type[Stderr], text: str) -> list[Event]:
        """Text as events of bounded size, as far as the budget goes."""
        events: list[Event] = []
        step = max(1, self._limits.max_event_size // 4)  # a character has at most 4 bytes
        for start in range(0, len(text), step):
            piece = text[start : start + step]
            size = _size(piece)
            room = max(0, self._budget - _EVENT_OVERHEAD)
            kept = piece if size <= room else _cut(piece, room)
            self._truncated.output_bytes += size - (size if kept is piece else _size(kept))
            if kept:
                self._budget -= _size(kept) + _EVENT_OVERHEAD
                events.append(kind(content=kept))
            if kept is not piece:
                self._budget = 0
        return events

    def _display(self, message: Incoming) -> list[Event]:
        content = message.content_as(_Display)
        data = content.data
        if contract.SUMMARY_MIME in data:
            self._summary = _convert(data[contract.SUMMARY_MIME], _Summary)
            return []
        if contract.DROPPED_MIME in data:
            self._truncated.rich_outputs += 1
            return []
        if message.header.msg_type != "update_display_data" and (image := _image(content)):
            return self._rich(image, len(image.content))
        display_id = content.transient.get("display_id")
        return self._rich(
            Display(
                data=data,
                metadata=content.metadata,
                display_id=display_id if isinstance(display_id, str) else None,
                update=message.header.msg_type == "update_display_data",
            ),
            len(message.content),
        )

    def _rich(self, event: Event, size: int) -> list[Event]:
        """A rich output whole, or not at all: half a picture is of no use."""
        if size + _EVENT_OVERHEAD > self._budget:
            self._truncated.rich_outputs += 1
            return []
        self._budget -= size + _EVENT_OVERHEAD
        return [event]

    # The end.

    def _finish(self) -> Result:
        self.phase = Phase.ENDED
        reply = self._reply or _Reply()
        success = reply.status == "ok"
        detail = None if success else self._failure(self._error or reply, reply.status)
        if self._summary.variables_dropped:
            self._truncated.variables = self._summary.variables_dropped
        self._truncated.files = self._summary.files_truncated
        self._truncated.report = self._report.truncated
        return Result(
            success=success,
            execution_count=self._execution_count,
            execution_time=self._execution_time(),
            error=_one_line(detail) if detail else None,
            error_detail=detail,
            dataframe=self._report.dataframe,
            return_value=self._report.return_value,
            variables=self._summary.variables[: self._limits.max_variables],
            files=self._summary.files,
            truncated=self._cut(),
        )

    def _failure(self, error: _Error, status: str) -> ErrorDetail:
        traceback = _plain_traceback(error)
        if self._interruption is not None:
            cause, message = self._interruption
            name = "TimeoutError" if cause == "timeout" else error.ename or "KeyboardInterrupt"
            return ErrorDetail(name=name, value=message, cause=cause, traceback=traceback)
        if status == "aborted":
            return ErrorDetail(
                name="Aborted", value="the kernel skipped the cell", cause="rejected"
            )
        return ErrorDetail(
            name=error.ename[:_ERROR_LINE_CHARS] or "Error",
            value=error.evalue[:_ERROR_VALUE_CHARS],
            cause="exception",
            traceback=traceback,
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
        return self._truncated if self._truncated != Truncated() else None


def _cell(request: ExecutionRequest, limits: OutputLimits, allow_stdin: bool) -> Outgoing:
    asked: dict[str, Any] = {
        "on_error": request.on_error,
        "max_variables": limits.max_variables,
        "env": request.env,
    }
    if request.cwd is not None:
        asked["cwd"] = request.cwd
    return execute_request(request.code, asked, silent=False, allow_stdin=allow_stdin)


def _report_cell(request: ExecutionRequest) -> Outgoing:
    asked = {
        "result_var": request.result_var,
        "preview_rows": request.preview_rows,
        "max_bytes": _REPORT_BYTES,
    }
    return execute_request(contract.REPORT_CODE, {"report": asked})


def execute_request(
    code: str, asked: dict[str, Any], *, silent: bool = True, allow_stdin: bool = False
) -> Outgoing:
    """A request to run code; `asked` rides in its metadata, for the helper."""
    content = {
        "code": code,
        "silent": silent,
        "store_history": not silent,
        "user_expressions": {},
        "allow_stdin": allow_stdin,
        "stop_on_error": False,  # else a failing cell would abort the report pipelined behind it
    }
    return Outgoing("shell", "execute_request", content, {contract.METADATA_KEY: asked})


def _convert(value: Any, type_: type[_T]) -> _T:
    """User code can send this MIME type as well; what does not fit counts for nothing."""
    try:
        return msgspec.convert(value, type_)
    except msgspec.ValidationError:
        return type_()


def _image(content: _Display) -> Image | None:
    """The picture of a bundle, unless it carries something richer (Plotly, Vega) that has one beside."""
    data = content.data
    if any(mime.startswith("application/") for mime in data):
        return None
    for mime in _IMAGE_MIMES:
        picture = data.get(mime)
        if isinstance(picture, str):
            width, height = _dimensions(mime, picture, content.metadata.get(mime))
            return Image(
                mime=mime,
                content=picture if mime == "image/svg+xml" else "".join(picture.split()),
                width=width,
                height=height,
            )
    return None


def _dimensions(mime: str, picture: str, metadata: Any) -> tuple[int | None, int | None]:
    if mime == "image/png":
        try:  # signature (8), chunk length (4), "IHDR" (4), width (4), height (4)
            header = base64.b64decode(picture[:32])
        except (binascii.Error, ValueError):
            return None, None
        if header[12:16] == b"IHDR":
            return int.from_bytes(header[16:20]), int.from_bytes(header[20:24])
    if isinstance(metadata, dict):
        width, height = metadata.get("width"), metadata.get("height")
        if isinstance(width, int) and isinstance(height, int):
            return width, height
    return None, None


def _plain_traceback(error: _Error) -> list[str]:
    lines = "\n".join(error.traceback)[:_TRACEBACK_CHARS].split("\n")
    return [_ANSI.sub("", line) for line in lines[-_TRACEBACK_LINES:]] if error.traceback else []


def _traceback_text(error: _Error) -> str:
    text = _ANSI.sub("", "\n".join(error.traceback)) or f"{error.ename}: {error.evalue}"
    return text if text.endswith("\n") else text + "\n"


def _one_line(detail: ErrorDetail) -> str:
    value = detail.value.strip()
    first = value.splitlines()[0] if value else ""
    return (f"{detail.name}: {first}" if first else detail.name)[:_ERROR_LINE_CHARS]


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _cut(text: str, size: int) -> str:
    """The beginning of a text that fits into `size` bytes of UTF-8."""
    return text.encode("utf-8", "surrogatepass")[:size].decode("utf-8", "ignore")
