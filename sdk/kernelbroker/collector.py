"""Folds the events of one execution, in their order, into its result."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from .dataframe_info import DataFrameInfo
from .protocol import events
from .results import ExecutionResult, Output
from .rich_outputs import Display, Image


@dataclass
class _Stream:
    """Consecutive text of one stream."""

    name: Literal["stdout", "stderr"]
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class _Error(_Stream):
    """An error, as the text of its traceback."""

    ename: str = ""
    evalue: str = ""


@dataclass
class _Picture:
    """A picture, and the base64 or SVG text that it came as."""

    image: Image
    content: str


class Collector:
    """Takes events with `add`; `result` is the whole, after the event that ends the execution."""

    def __init__(self) -> None:
        self._outputs: list[_Stream | _Picture | Display] = []
        self._clear_is_due = False
        self._end: events.Result | None = None

    def add(self, event: events.Event) -> Any:
        """Take an event. Returns what its callback gets: text, an `Image` or a `Display`, or None."""
        match event:
            case events.Stdout(content=text):
                return self._text("stdout", text)
            case events.Stderr(content=text, is_traceback=True):
                return self._traceback(event)
            case events.Stderr(content=text):
                return self._text("stderr", text)
            case events.Image():
                self._before_output()
                image = Image.from_event(event)
                self._outputs.append(_Picture(image, event.content))
                return image
            case events.Display():
                return self._display(event)
            case events.Clear(wait=wait):
                self._clear_is_due = True
                if not wait:
                    self._before_output()
            case events.Input(prompt=prompt):
                return prompt
            case events.Result():
                self._end = event
            case events.Started():
                pass
        return None

    def result(self) -> ExecutionResult:
        """The result of the execution, which has ended."""
        end = self._end
        assert end is not None, "a result needs the execution's last event"
        table, streams = end.dataframe, [o for o in self._outputs if isinstance(o, _Stream)]
        return ExecutionResult(
            success=end.success,
            stdout="".join(stream.text for stream in streams if stream.name == "stdout"),
            stderr="".join(stream.text for stream in streams if stream.name == "stderr"),
            images=[o.image for o in self._outputs if isinstance(o, _Picture)],
            displays=[o for o in self._outputs if isinstance(o, Display)],
            outputs=self._notebook_outputs(end),
            dataframe=None if table is None else DataFrameInfo.of(table),
            return_value=end.return_value,
            variables=end.variables,
            files=end.files,
            exit_code=end.exit_code,
            error=end.error,
            error_detail=end.error_detail,
            execution_time=end.execution_time,
            execution_count=end.execution_count,
            truncated=end.truncated,
            kernel_restarted=end.kernel_restarted,
            findings=end.findings,
            execution_id=end.execution_id,
        )

    def _text(self, name: Literal["stdout", "stderr"], text: str) -> str:
        self._before_output()
        last = self._outputs[-1] if self._outputs else None
        if type(last) is not _Stream or last.name != name:
            last = _Stream(name)
            self._outputs.append(last)
        last.parts.append(text)
        return text

    def _traceback(self, event: events.Stderr) -> str:
        self._before_output()
        last = self._outputs[-1] if self._outputs else None
        if not isinstance(last, _Error) or event.error_name:
            last = _Error("stderr", ename=event.error_name, evalue=event.error_value)
            self._outputs.append(last)
        last.parts.append(event.content)
        return event.content

    def _display(self, event: events.Display) -> Display:
        display = Display(event.data, event.metadata, event.display_id, event.is_result)
        if event.update:
            shown = [
                place
                for place, output in enumerate(self._outputs)
                if isinstance(output, Display) and output.display_id == event.display_id
            ]
            for place in shown:
                self._outputs[place] = display
            if shown:
                return display
        # The original may belong to another execution; the update is shown on its own then.
        self._before_output()
        self._outputs.append(display)
        return display

    def _before_output(self) -> None:
        if self._clear_is_due:
            self._clear_is_due = False
            self._outputs.clear()

    def _notebook_outputs(self, end: events.Result) -> list[Output]:
        found: list[Output] = []
        for output in self._outputs:
            match output:
                case _Error(ename=ename, evalue=evalue, text=text):
                    lines = text.removesuffix("\n").split("\n")
                    found.append(_failed(ename, evalue, lines))
                case _Stream(name=name, text=text):
                    found.append({"output_type": "stream", "name": name, "text": text})
                case _Picture(image=image, content=content):
                    data = {image.mime: content, **image.bundle}
                    found.append(_shown(data, image.metadata, image.is_result, end))
                case Display(data=data, metadata=metadata, is_result=is_result):
                    found.append(_shown(data, metadata, is_result, end))
        _add_reason(found, end)
        return found


def _add_reason(outputs: list[Output], end: events.Result) -> None:
    """Complete the outputs of a cell that failed without an error of its own, such as by a timeout."""
    detail = end.error_detail
    if detail is None:
        return
    traceback = "\n".join(detail.traceback).rstrip("\n")
    errors = [output for output in outputs if output["output_type"] == "error"]
    if traceback and errors and "\n".join(errors[-1]["traceback"]).rstrip("\n").endswith(traceback):
        # The error of an interrupt is a KeyboardInterrupt; the detail has its reason.
        errors[-1].update(ename=detail.name, evalue=detail.value)
    elif detail.cause != "exception" or (end.truncated and end.truncated.output_bytes):
        outputs.append(_failed(detail.name, detail.value, detail.traceback))
    # Else IPython has printed the error, as it does with a group of exceptions.


def _failed(name: str, value: str, traceback: list[str]) -> Output:
    return {"output_type": "error", "ename": name, "evalue": value, "traceback": traceback}


def _shown(
    data: dict[str, Any], metadata: dict[str, Any], is_result: bool, end: events.Result
) -> Output:
    if not is_result:
        return {"output_type": "display_data", "data": data, "metadata": metadata}
    return {
        "output_type": "execute_result",
        "execution_count": end.execution_count,
        "data": data,
        "metadata": metadata,
    }
