"""One execution as a state machine, with scripted messages."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker.protocol.codec import decode_as, encode
from kernelbroker.protocol.events import (
    Clear,
    Display,
    Event,
    Image,
    Input,
    Result,
    Started,
    Stderr,
    Stdout,
    Truncated,
)
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_kernel import contract
from kernelbroker_server.kernels.cell_state import CellState, Phase
from kernelbroker_server.kernels.execution import CellExecution
from kernelbroker_server.kernels.framing import Incoming, decode_frame
from kernelbroker_server.kernels.outputs import DisplayContent, OutputLimits, Outputs
from kernelbroker_server.kernels.redaction import Redactor

from tests.support.gateway import frame
from tests.support.generated import any_json, repeatable, tag_text
from tests.support.results import cause_of

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAADCAYAAAC56t6BAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class Script:
    """A cell, and messages to it as its kernel would send them."""

    def __init__(self, limits: OutputLimits | None = None, **request: Any) -> None:
        self.cell = CellExecution(
            ExecutionRequest(code="1", **request), limits or OutputLimits(), allow_stdin=True
        )
        self.events: list[Event] = []

    def message(
        self,
        kind: str,
        content: Any,
        *,
        parent: str | int = 0,
        date: str = "",
        metadata: Any = None,
    ) -> Incoming:
        channel, _, msg_type = kind.partition(".")
        if isinstance(parent, int):
            parent = self.cell.outgoing[parent].msg_id
        return decode_frame(frame(channel, msg_type, parent, content, date=date, metadata=metadata))

    def get(self, kind: str, content: Any = None, **options: Any) -> list[Event]:
        """Receive one message; returns its events."""
        events = self.cell.receive(
            self.message(kind, {} if content is None else content, **options)
        )
        self.events += events
        return events

    def begin(self) -> None:
        self.get("iopub.status", {"execution_state": "busy"})
        self.get("iopub.execute_input", {"execution_count": 7})

    def stdout(self, text: str, **options: Any) -> list[Event]:
        return self.get("iopub.stream", {"name": "stdout", "text": text}, **options)

    def reply(self, parent: int = 0, *, metadata: Any = None, **content: Any) -> list[Event]:
        reply = {"status": "ok", "execution_count": 7, "payload": [], **content}
        return self.get("shell.execute_reply", reply, parent=parent, metadata=metadata)

    def idle(self, parent: int = 0) -> list[Event]:
        return self.get("iopub.status", {"execution_state": "idle"}, parent=parent)

    def finish(self) -> Result:
        self.reply()
        self.idle()
        return self.result

    @property
    def result(self) -> Result:
        result = self.events[-1]
        assert isinstance(result, Result)
        assert self.cell.phase is Phase.ENDED
        return result


def kinds(events: Iterable[Event]) -> list[str]:
    return [type(event).__name__ for event in events]


def test_events_of_a_simple_cell() -> None:
    """A cell gives started, its output and the result, and nothing afterwards."""
    script = Script()
    script.begin()
    script.stdout("hello\n")
    script.get("iopub.stream", {"name": "stderr", "text": "oh\n"})
    result = script.finish()
    assert script.events == [
        Started(execution_count=7),
        Stdout(content="hello\n"),
        Stderr(content="oh\n"),
        result,
    ]
    assert (result.success, result.execution_count, result.error) == (True, 7, None)
    assert result.truncated is None
    assert script.stdout("late") == []
    assert script.idle() == []
    assert script.cell.end("kernel_died", "KernelDied", "x", restarted=True) == []


@pytest.mark.parametrize("order", ["reply idle", "idle reply"])
def test_ends_on_reply_and_idle(order: str) -> None:
    """The result comes with the later of reply and idle; output in between is kept."""
    script = Script()
    script.begin()
    first, second = (getattr(script, name) for name in order.split())
    assert first() == []
    assert kinds(script.stdout("in between")) == ["Stdout"]
    assert kinds(second()) == ["Result"]


@pytest.mark.parametrize(
    "order",
    ["r0 i0 r1 i1", "r0 r1 i0 i1", "i0 i1 r0 r1", "r1 i1 r0 i0", "i1 r1 i0 r0", "r0 i1 i0 r1"],
)
def test_ends_when_the_cell_and_its_report_have_ended(order: str) -> None:
    """A cell with a report ends when its four signals have come, in any order."""
    script = Script(result_var="df")
    script.begin()
    for signal in order.split():
        assert script.cell.phase is not Phase.ENDED
        parent = int(signal[1])
        script.reply(parent) if signal[0] == "r" else script.idle(parent)
    assert script.result.success


def test_signals_that_repeat() -> None:
    """A repeated reply or idle does not replace the missing one."""
    script = Script()
    script.begin()
    script.reply()
    script.reply()
    script.get("shell.execute_reply", {"status": "ok"}, parent="someone else's")
    script.get("iopub.status", {"execution_state": "idle"}, parent="someone else's")
    assert script.cell.phase is Phase.STARTED
    script.idle()
    assert kinds(script.events) == ["Started", "Result"]


def test_result_has_the_report() -> None:
    """The report is in the result, and not in the output."""
    script = Script(result_var="x", preview_rows=3)
    cell, report = script.cell.outgoing
    asked = report.metadata[contract.METADATA_KEY]["report"]
    assert (asked["result_var"], asked["preview_rows"]) == ("x", 3)
    assert (cell.content["silent"], report.content["silent"]) == (False, True)
    script.begin()
    script.reply()
    script.idle()
    data = {contract.REPORT_MIME: {"return_value": {"a": 1}, "truncated": "half of it"}}
    assert script.get("iopub.display_data", {"data": data}, parent=1) == []
    script.reply(1)
    script.idle(1)
    assert script.result.return_value == {"a": 1}
    assert script.result.truncated == Truncated(report="half of it")


def test_report_beside_other_output() -> None:
    """A display of user code during the report does not replace the report."""
    script = Script(result_var="x")
    script.begin()
    script.reply()
    script.idle()
    data = {contract.REPORT_MIME: {"return_value": 5}}
    script.get("iopub.display_data", {"data": data}, parent=1)
    script.get("iopub.display_data", {"data": {"text/plain": "a hook's"}}, parent=1)
    script.reply(1)
    script.idle(1)
    assert (script.result.return_value, script.result.truncated) == (5, None)
    assert kinds(script.events) == ["Started", "Result"]


@pytest.mark.slow
def test_message_with_too_many_values_is_dropped() -> None:
    """A display of a million empty lists, which would take far more memory than its text, is dropped."""
    script = Script()
    script.begin()
    script.get("iopub.display_data", {"data": {"application/json": [[]] * 1_500_000}})
    script.get("iopub.display_data", {"data": {"application/json": [[]] * 1_000}})
    script.reply()
    script.idle()
    assert kinds(script.events) == ["Started", "Display", "Result"]
    assert script.result.truncated == Truncated(rich_outputs=1)


@pytest.mark.parametrize(
    "data",
    [
        {contract.DROPPED_MIME: {"bytes": 10**9}},
        {contract.REPORT_MIME: {"return_value": "x" * 25 * 1024**2}},
    ],
)
def test_report_too_large(data: dict[str, Any]) -> None:
    """A report that could not be sent is marked as truncated."""
    script = Script(result_var="x")
    script.begin()
    script.reply()
    script.idle()
    script.get("iopub.display_data", {"data": data}, parent=1)
    script.reply(1)
    script.idle(1)
    assert script.result.truncated is not None
    assert "too large" in (script.result.truncated.report or "")
    assert script.result.return_value is None


def test_result_has_the_summary() -> None:
    """The hooks' summary is in the result, with bounded lists and a note of what was cut."""
    script = Script(OutputLimits(max_variables=2))
    script.begin()
    summary = {
        "execution_time": 1.5,
        "variables": [{"name": n, "type": "int"} for n in "abc"],
        "variables_dropped": 4,
        "files": [{"path": "a.csv", "size": 3}],
        "files_truncated": True,
    }
    assert script.reply(metadata={contract.METADATA_KEY: summary}) == []
    script.idle()
    result = script.result
    assert result.execution_time == 1.5
    assert [variable.name for variable in result.variables] == ["a", "b"]
    assert (result.files[0].path, result.files[0].size) == ("a.csv", 3)
    assert result.truncated == Truncated(variables=4, files=True)


@pytest.mark.parametrize(
    "summary",
    [3, None, {"execution_time": "x"}, {"variables": [{"name": 1}]}, {"\ud800": 1}, [[]]],
)
def test_forged_summary_is_ignored(summary: Any) -> None:
    """User code can send the hooks' messages; those with invalid content are ignored."""
    script = Script(result_var="x")
    script.begin()
    script.get("iopub.display_data", {"data": {contract.REPORT_MIME: summary}}, parent=1)
    script.reply(metadata={contract.METADATA_KEY: summary})
    script.idle()
    script.reply(1)
    script.idle(1)
    assert script.result.success
    assert script.result.variables == []


def test_execution_time_from_message_dates() -> None:
    """Where user code removed the hooks, the messages' dates give the duration."""
    script = Script()
    script.get("iopub.status", {"execution_state": "busy"}, date="2026-11-21T10:00:00.000000+00:00")
    script.get("shell.execute_reply", {"status": "ok"}, date="2026-11-21T10:00:02.500000+00:00")
    script.idle()
    assert script.result.execution_time == 2.5


@pytest.mark.parametrize("date", ["", "yesterday", "2026-11-21T10:00:00", "9999-12-31T23:59:59Z"])
def test_execution_time_from_invalid_dates(date: str) -> None:
    """Invalid or inconsistent dates give no duration, or none below zero."""
    script = Script()
    script.get("iopub.status", {"execution_state": "busy"}, date=date)
    script.get("shell.execute_reply", {"status": "ok"}, date="2026-11-21T10:00:00Z")
    script.idle()
    assert script.result.execution_time in (None, 0.0)


def test_output_of_an_earlier_cell() -> None:
    """Output of an earlier cell's thread is shown; its other messages are not."""
    script = Script()
    script.begin()
    assert kinds(script.stdout("from a thread", parent="earlier")) == ["Stdout"]
    for kind, content in [
        ("iopub.display_data", {"data": {"text/plain": "x"}}),
        ("iopub.error", {"ename": "E", "evalue": "", "traceback": []}),
        ("iopub.execute_input", {"execution_count": 1}),
        ("stdin.input_request", {"prompt": "?"}),
        ("iopub.clear_output", {"wait": True}),
    ]:
        assert script.get(kind, content, parent="earlier") == []


def test_started_comes_once_and_first() -> None:
    """Output that arrives before the cell's start follows one started event."""
    script = Script()
    assert kinds(script.stdout("early", parent="earlier")) == ["Started", "Stdout"]
    script.begin()
    script.get("iopub.execute_input", {"execution_count": 99})
    script.finish()
    assert kinds(script.events) == ["Started", "Stdout", "Result"]


def test_started_without_output() -> None:
    """A cell without an execute_input message still gets a started event."""
    script = Script()
    script.finish()
    assert script.events[0] == Started(execution_count=7)
    assert kinds(script.events) == ["Started", "Result"]


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("iopub.stream", {"name": "stdout"}),
        ("iopub.stream", {"name": "stdout", "text": 5}),
        ("iopub.stream", b"\xff"),
        ("iopub.stream", b"[" * 100_000),
        ("iopub.display_data", {"data": [1]}),
        ("iopub.display_data", b'{"data":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}"),
        ("iopub.status", {"execution_state": 4}),
        ("iopub.error", {"ename": 3}),
        ("iopub.execute_input", {"execution_count": "many"}),
        ("iopub.clear_output", {"wait": "yes"}),
        ("stdin.input_request", {"prompt": 5}),
        ("iopub.no_such_type", {}),
        ("nowhere.stream", {"name": "stdout", "text": "x"}),
        ("shell.stream", {"name": "stdout", "text": "x"}),
        ("control.execute_reply", {"status": "ok"}),
    ],
)
def test_malformed_messages_are_dropped(kind: str, content: Any) -> None:
    """A message with invalid content, or on the wrong channel, is ignored."""
    script = Script()
    script.begin()
    assert script.get(kind, content) == []
    assert script.finish().success
    assert kinds(script.events) == ["Started", "Result"]


@pytest.mark.parametrize("order", ["reply idle", "idle reply"])
@pytest.mark.parametrize(
    "content", [{"status": "error", "ename": "E", "traceback": [1]}, {"status": 3}, b"", b"[]"]
)
def test_malformed_reply_ends_the_cell(content: Any, order: str) -> None:
    """A reply with an invalid traceback still ends the cell."""
    script = Script()
    script.begin()
    for signal in order.split():
        script.idle() if signal == "idle" else script.get("shell.execute_reply", content)
    assert not script.result.success


def test_error_shows_its_traceback() -> None:
    """A failed cell shows its traceback and its error, both without colours."""
    script = Script()
    script.begin()
    error = {
        "ename": "ValueError",
        "evalue": "no\nway",
        "traceback": ["\x1b[31mValueError\x1b[0m", "no"],
    }
    assert script.get("iopub.error", error) == [
        Stderr(
            content="ValueError\nno\n",
            is_traceback=True,
            error_name="ValueError",
            error_value="no\nway",
        )
    ]
    script.reply(status="error", **error)
    script.idle()
    result = script.result
    assert (result.success, result.error) == (False, "ValueError: no")
    assert cause_of(result) == "exception"
    assert result.error_detail.value == "no\nway"
    assert result.error_detail.traceback == ["ValueError", "no"]


def test_a_long_traceback_has_its_error_once() -> None:
    """Only the first event of a traceback names the error, also where a secret is held back."""
    redactor = Redactor(["hunter22"])
    script = Script(OutputLimits(max_event_size=40))
    script.begin()
    error = {"ename": "E", "evalue": "v", "traceback": ["x" * 100 + "hunter"]}
    found = [e for event in script.get("iopub.error", error) for e in redactor.events(event)]
    found += redactor.events(Result(success=False))
    errors = [event for event in found if isinstance(event, Stderr)]
    assert "".join(event.content for event in errors) == "x" * 100 + "hunter\n"
    assert len(errors) > 2
    names = [(event.error_name, event.error_value) for event in errors]
    assert names == [("E", "v")] + [("", "")] * (len(errors) - 1)


@pytest.mark.parametrize(
    ("cause", "name"), [("timeout", "TimeoutError"), ("interrupted", "KeyboardInterrupt")]
)
def test_interrupted_cell_tells_the_reason(cause: Any, name: str) -> None:
    """A cell that its interrupt ends fails with the interruption's reason."""
    script = Script()
    script.begin()
    script.cell.interrupted(cause, "as it was asked")
    script.reply(status="error", ename="KeyboardInterrupt", evalue="")
    script.idle()
    detail = script.result.error_detail
    assert detail is not None
    assert (detail.cause, detail.name, detail.value) == (cause, name, "as it was asked")
    assert not script.result.kernel_restarted


def test_success_after_an_interrupt() -> None:
    """A cell that swallows its interrupt is no success; one that had replied before the interrupt is."""
    script = Script()
    script.begin()
    script.cell.interrupted("timeout", "too long")
    assert not script.finish().success
    assert script.result.error == "TimeoutError: too long"
    assert script.result.error_detail is not None
    assert script.result.error_detail.cause == "timeout"


@pytest.mark.parametrize("begun", [False, True])
def test_end_without_the_kernel(begun: bool) -> None:
    """Ending an execution without its kernel gives one result with the cause, and nothing follows."""
    script = Script()
    if begun:
        script.begin()
    events = script.cell.end("out_of_memory", "OutOfMemory", "it took it all", restarted=True)
    assert kinds(events) == ["Result"]
    result = events[0]
    assert isinstance(result, Result)
    assert result.error == "OutOfMemory: it took it all"
    assert result.kernel_restarted
    assert cause_of(result) == "out_of_memory"
    assert result.execution_count == (7 if begun else None)
    assert script.cell.end("timeout", "x", "y", restarted=True) == []
    script.reply()
    assert script.idle() == []


def test_image_keeps_its_other_forms() -> None:
    """An image event has the picture's size, the other MIME forms, and the metadata of all."""
    script = Script()
    script.begin()
    png = {"image/png": PNG + "\n", "text/plain": "<Figure>"}
    assert script.get("iopub.display_data", {"data": png}) == [
        Image(mime="image/png", content=PNG, width=2, height=3, data={"text/plain": "<Figure>"})
    ]
    svg = {"image/svg+xml": "<svg/>\n", "text/html": "<b>", "text/plain": "svg"}
    metadata = {"image/svg+xml": {"width": 4, "height": 5}}
    assert script.get("iopub.execute_result", {"data": svg, "metadata": metadata}) == [
        Image(
            mime="image/svg+xml",
            content="<svg/>\n",
            width=4,
            height=5,
            data={"text/html": "<b>", "text/plain": "svg"},
            metadata=metadata,
            is_result=True,
        )
    ]


def test_images_that_stay_bundles() -> None:
    """A bundle with a richer form, a display id or an invalid picture is a display event."""
    script = Script()
    script.begin()
    for content in [
        {"data": {"application/vnd.plotly.v1+json": {}, "image/png": PNG}},
        {"data": {"image/png": PNG}, "transient": {"display_id": "d"}},
        {"data": {"image/png": ["not", "text"]}},
    ]:
        assert kinds(script.get("iopub.display_data", content)) == ["Display"]


@pytest.mark.parametrize("picture", ["", "AAAA", "not base64!", PNG[:30], "é" * 40])
def test_invalid_images_have_no_size(picture: str) -> None:
    """An invalid picture has no size."""
    script = Script()
    script.begin()
    (image,) = script.get("iopub.display_data", {"data": {"image/png": picture}})
    assert isinstance(image, Image)
    assert (image.width, image.height) == (None, None)


def test_display_keeps_its_id() -> None:
    """A display keeps its id, and an update is marked as one."""
    script = Script()
    script.begin()
    bundle = {"data": {"text/html": "<b>"}, "metadata": {"a": 1}, "transient": {"display_id": "d"}}
    assert script.get("iopub.display_data", bundle) == [
        Display(data={"text/html": "<b>"}, metadata={"a": 1}, display_id="d")
    ]
    assert script.get("iopub.update_display_data", bundle) == [
        Display(data={"text/html": "<b>"}, metadata={"a": 1}, display_id="d", update=True)
    ]
    strange = {"data": {"text/plain": "1"}, "transient": {"display_id": 5}}
    assert script.get("iopub.execute_result", strange) == [
        Display(data={"text/plain": "1"}, is_result=True)
    ]


def test_clear_and_input() -> None:
    """clear_output() and input() become events."""
    script = Script()
    script.begin()
    assert script.get("iopub.clear_output", {"wait": True}) == [Clear(wait=True)]
    assert script.get("stdin.input_request", {"prompt": "name? ", "password": True}) == [
        Input(prompt="name? ", password=True)
    ]


def test_page_is_a_display() -> None:
    """The text of `name?` is a display; other payloads are ignored."""
    script = Script()
    script.begin()
    page = {"source": "page", "data": {"text/plain": "help"}, "start": 0}
    events = script.reply(payload=[page, {"source": "set_next_input"}, {"source": "page"}])
    assert events == [Display(data={"text/plain": "help"})]


# The budget.

OVERHEAD = 100


def test_long_text_is_split() -> None:
    """Text longer than an event is split without loss."""
    script = Script(OutputLimits(max_event_size=40))
    script.begin()
    text = "añ🎉" * 33
    events = script.stdout(text)
    assert len(events) > 1
    assert "".join(event.content for event in events) == text  # type: ignore[union-attr]
    assert max(len(event.content.encode()) for event in events) <= 40  # type: ignore[union-attr]
    assert script.finish().truncated is None


@pytest.mark.parametrize(
    "text", ["x" * 1000, "é" * 500, "🎉" * 250, "\ud800" * 300, "aé🎉\ud800" * 90]
)
def test_text_beyond_the_budget(text: str) -> None:
    """The beginning of the text is kept; the rest is counted in bytes."""
    script = Script(OutputLimits(max_output_size=OVERHEAD + 333))
    script.begin()
    (event,) = script.stdout(text)
    assert isinstance(event, Stdout)
    assert text.startswith(event.content)
    kept = len(event.content.encode("utf-8", "surrogatepass"))
    assert 330 <= kept <= 333
    assert script.stdout("more") == []
    result = script.finish()
    lost = len(text.encode("utf-8", "surrogatepass")) - kept + len("more")
    assert result.success
    assert result.truncated == Truncated(output_bytes=lost)


def test_rich_output_beyond_the_budget() -> None:
    """A picture or display is kept complete, or dropped and counted."""
    script = Script(OutputLimits(max_output_size=2000))
    script.begin()
    big = {"data": {"text/html": "x" * 3000}}
    assert script.get("iopub.display_data", big) == []
    assert kinds(script.stdout("still room")) == ["Stdout"]
    assert script.get("iopub.display_data", {"data": {"image/png": "A" * 3000}}) == []
    assert script.get("iopub.display_data", {"data": {contract.DROPPED_MIME: {}}}) == []
    assert script.finish().truncated == Truncated(rich_outputs=3)


@pytest.mark.parametrize("kind", ["display_data", "execute_result"])
@pytest.mark.parametrize("text", ["é" * 600, "\n" * 1200, "1, " * 400, "\x00" * 1200])
def test_the_text_of_a_rich_output_counts_as_utf_8(kind: str, text: str) -> None:
    """A text counts its bytes, however it was escaped on its way."""
    script = Script(OutputLimits(max_output_size=OVERHEAD + 1200 + len("text/plain")))
    script.begin()
    (event,) = script.get(f"iopub.{kind}", {"data": {"text/plain": text}})
    assert event == Display(data={"text/plain": text}, is_result=kind == "execute_result")
    assert script.finish().truncated is None


def test_rich_output_beyond_the_budget_keeps_its_text() -> None:
    """Where a rich output does not fit, its text stays, cut if necessary, and what is lost is counted."""
    script = Script(OutputLimits(max_output_size=2000))
    script.begin()
    big = {"data": {"text/plain": "small", "text/html": "x" * 3000, "image/png": PNG}}
    shown = script.get("iopub.execute_result", big)
    assert shown == [Display(data={"text/plain": "small"}, is_result=True)]
    (event,) = script.get("iopub.display_data", {"data": {"text/plain": "é" * 3000}})
    assert isinstance(event, Display)
    text = event.data["text/plain"]
    lost = 2 * (3000 - len(text))
    assert 0 < len(text) < 1000
    assert script.finish().truncated == Truncated(rich_outputs=1, output_bytes=lost)


@pytest.mark.parametrize(
    ("dropped", "truncated"),
    [
        ({"text_bytes": 7, "rich": False}, Truncated(output_bytes=7)),
        ({"text_bytes": 7, "rich": True}, Truncated(output_bytes=7, rich_outputs=1)),
        ({"text_bytes": "x"}, Truncated(rich_outputs=1)),
        (5, None),
    ],
)
def test_text_that_the_gateway_cut(dropped: Any, truncated: Truncated | None) -> None:
    """The text that the gateway has left is shown, and what it cut is counted."""
    script = Script()
    script.begin()
    data = {"text/plain": "left", contract.DROPPED_MIME: dropped}
    shown = script.get("iopub.execute_result", {"data": data})
    assert shown == [Display(data={"text/plain": "left"}, is_result=True)]
    assert script.finish().truncated == truncated


def test_a_cut_rich_output_shows_no_half_secret() -> None:
    """The end of a text that was cut is left out while it may be the beginning of a secret."""
    redactor = Redactor(["hunter22hunter22"])
    limits = OutputLimits(max_output_size=OVERHEAD + 10)
    outputs = Outputs(limits, redactor.clean_beginning, CellState((), set(), OVERHEAD + 10))
    (event,) = outputs.display(DisplayContent(data={"text/plain": "abchunter22hunter22"}))
    assert event == Display(data={"text/plain": "abc"})


def test_a_long_text_with_commas_is_not_too_heavy() -> None:
    """Commas within a text are no values."""
    script = Script()
    script.begin()
    text = "1, 2, " * 1024**2
    (event,) = script.get("iopub.execute_result", {"data": {"text/plain": text, "text/x": '"'}})
    assert isinstance(event, Display)
    assert event.data["text/plain"] == text


def test_tiny_outputs_are_bounded() -> None:
    """A million tiny outputs are bounded as one large output is."""
    limits = OutputLimits(max_output_size=10_000)
    for kind, content in [
        ("iopub.stream", {"name": "stdout", "text": "."}),
        ("iopub.clear_output", {"wait": False}),
        ("iopub.display_data", {"data": {}}),
        ("iopub.error", {"ename": "", "evalue": "", "traceback": [""]}),
        ("iopub.execute_input", {"execution_count": 1}),
    ]:
        script = Script(limits)
        script.begin()
        message = script.message(kind, content)
        events = sum(len(script.cell.receive(message)) for _ in range(2000))
        assert events <= 100, kind


def test_inputs_are_bounded() -> None:
    """Inputs are bounded, and are independent of the output's budget."""
    script = Script(OutputLimits(max_output_size=100))
    script.begin()
    script.stdout("x" * 1000)
    message = script.message("stdin.input_request", {"prompt": "?" * 10**5})
    events = [event for _ in range(3000) for event in script.cell.receive(message)]
    assert events
    assert sum(len(event.prompt) for event in events if isinstance(event, Input)) <= 10**7


@repeatable
@given(st.lists(tag_text, max_size=12), st.integers(1, 400), st.integers(4, 64))
def test_output_bytes_are_counted_exactly(texts: list[str], budget: int, event_size: int) -> None:
    """Bytes shown and bytes dropped add up to bytes printed, within the budget."""
    script = Script(OutputLimits(max_output_size=budget, max_event_size=event_size))
    script.begin()
    events = [event for text in texts for event in script.stdout(text)]
    shown = sum(len(e.content.encode("utf-8", "surrogatepass")) for e in events)  # type: ignore[union-attr]
    printed = sum(len(text.encode("utf-8", "surrogatepass")) for text in texts)
    truncated = script.finish().truncated or Truncated()
    assert shown + truncated.output_bytes == printed
    assert shown + OVERHEAD * len(events) <= budget


# Anything.

messages = st.tuples(
    st.sampled_from(
        [
            "iopub.status",
            "iopub.execute_input",
            "iopub.stream",
            "iopub.display_data",
            "iopub.execute_result",
            "iopub.update_display_data",
            "iopub.error",
            "iopub.clear_output",
            "stdin.input_request",
            "shell.execute_reply",
            "shell.kernel_info_reply",
            "control.x",
        ]
    ),
    st.sampled_from(
        [
            {"execution_state": "idle"},
            {"execution_state": "busy"},
            {"status": "ok", "execution_count": 3},
            {"status": "error", "ename": "E", "evalue": "v", "traceback": ["\x1b[1mt"]},
            {"status": "aborted"},
            {"name": "stdout", "text": "x" * 300},
            {"data": {"text/plain": "1"}, "transient": {"display_id": "d"}},
            {"data": {"image/png": PNG}},
            {"data": {contract.REPORT_MIME: {"return_value": 1}}},
            {"wait": True},
            {"prompt": "?"},
        ]
    )
    | st.dictionaries(tag_text, any_json, max_size=3),
    st.sampled_from([0, 0, 0, 1, "other"]),
)


@repeatable
@given(st.lists(messages, max_size=30), st.booleans(), st.sampled_from(["reply", "end"]))
def test_any_messages_give_one_result(
    sequence: list[tuple[str, Any, int | str]], reports: bool, ending: str
) -> None:
    """Any sequence of messages gives one started event, first, and one result, last."""
    script = Script(OutputLimits(max_output_size=1500), result_var="x" if reports else None)
    for kind, content, parent in sequence:
        if parent == 1 and not reports:
            parent = "other"
        script.get(kind, json.dumps(content).encode(), parent=parent)
    if ending == "end":
        script.events += script.cell.end("sandbox_lost", "SandboxLost", "gone", restarted=True)
    for parent in range(len(script.cell.outgoing)):
        script.reply(parent)
        script.idle(parent)
    found = kinds(script.events)
    assert script.cell.phase is Phase.ENDED
    assert found.count("Result") == 1
    assert found[-1] == "Result"
    assert found.count("Started") <= 1
    assert found[0] == "Started" or found == ["Result"]
    for event in script.events:
        encode(event)
    shown = sum(len(encode(event)) for event in script.events[:-1])
    assert shown <= 1500 * 6 + 200 * len([e for e in script.events if isinstance(e, Input)])


@repeatable
@given(st.lists(messages, max_size=20), st.booleans(), st.integers(0, 24))
def test_an_execution_goes_on_from_any_message(
    sequence: list[tuple[str, Any, int | str]], reports: bool, cut: int
) -> None:
    """Another broker that has the stored state makes the same events of the messages that follow."""
    limits, variable = OutputLimits(max_output_size=1500), "x" if reports else None
    parents = range(1 + reports)
    ends = [("shell.execute_reply", {"status": "ok", "execution_count": 7}, n) for n in parents]
    ends += [("iopub.status", {"execution_state": "idle"}, n) for n in parents]
    whole, parted = Script(limits, result_var=variable), Script(limits, result_var=variable)
    for place, (kind, content, parent) in enumerate([*sequence, *ends]):
        if place == cut:
            state = decode_as(encode(parted.cell.state), CellState)
            request = ExecutionRequest(code="1", result_var=variable)
            parted.cell = CellExecution(request, limits, allow_stdin=True, state=state)
        if parent == 1 and not reports:
            parent = "other"
        for script in (whole, parted):
            script.get(kind, json.dumps(content).encode(), parent=parent)
    assert parted.events == whole.events
    assert isinstance(parted.events[-1], Result)
