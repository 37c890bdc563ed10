"""Folds the events of one execution into the outputs of a notebook cell (nbformat 4)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from . import events

Output: TypeAlias = dict[str, Any]
"""An output of a notebook cell in the form of nbformat 4; `output_type` is its type."""


@dataclass
class Text:
    """Consecutive text of one stream."""

    name: Literal["stdout", "stderr"]
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


@dataclass
class Failure(Text):
    """An error, as the text of its traceback."""

    ename: str = ""
    evalue: str = ""


Item: TypeAlias = Text | events.Image | events.Display


class Outputs:
    """Takes events with `add`.

    Attributes:
        items: what is shown, in order.
        end: the last event of an execution that has ended.
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.end: events.Result | None = None
        self._clear_is_due = False

    def add(self, event: events.Event) -> None:
        match event:
            case events.Stdout(content=text):
                self._text("stdout", text)
            case events.Stderr(is_traceback=True):
                self._traceback(event)
            case events.Stderr(content=text):
                self._text("stderr", text)
            case events.Image():
                self._before_output()
                self.items.append(event)
            case events.Display():
                self._display(event)
            case events.Clear(wait=wait):
                self._clear_is_due = True
                if not wait:
                    self._before_output()
            case events.Result():
                self.end = event
            case events.Started() | events.Input():
                pass

    def _text(self, name: Literal["stdout", "stderr"], text: str) -> None:
        self._before_output()
        last = self.items[-1] if self.items else None
        if type(last) is not Text or last.name != name:
            last = Text(name)
            self.items.append(last)
        last.parts.append(text)

    def _traceback(self, event: events.Stderr) -> None:
        self._before_output()
        last = self.items[-1] if self.items else None
        if not isinstance(last, Failure) or event.error_name:
            last = Failure("stderr", ename=event.error_name, evalue=event.error_value)
            self.items.append(last)
        last.parts.append(event.content)

    def _display(self, event: events.Display) -> None:
        shown = [
            place
            for place, item in enumerate(self.items)
            if event.display_id is not None
            and isinstance(item, events.Display)
            and item.display_id == event.display_id
        ]
        for (
            place
        ) in shown:  # also if it is shown once more: in a notebook all with one id are alike
            self.items[place] = event
        if event.update and shown:
            return
        # The original may belong to another execution; the update is shown on its own then.
        self._before_output()
        self.items.append(event)

    def _before_output(self) -> None:
        if self._clear_is_due:
            self._clear_is_due = False
            self.items.clear()

    def as_notebook(self) -> list[Output]:
        """Return the outputs so far, in the form of nbformat 4."""
        found: list[Output] = []
        for item in self.items:
            match item:
                case Failure(ename=ename, evalue=evalue, text=text):
                    lines = text.removesuffix("\n").split("\n")
                    found.append(_failed(ename, evalue, lines))
                case Text(name=name, text=text):
                    found.append({"output_type": "stream", "name": name, "text": text})
                case events.Image(mime=mime, content=content, data=data, chart=chart):
                    charts = {} if chart is None else {events.CHART_MIME: chart}
                    found.append(self._shown(item, {mime: content, **data, **charts}))
                case events.Display(data=data):
                    found.append(self._shown(item, data))
        if self.end is not None:
            _add_reason(found, self.end)
        return found

    def _shown(self, item: events.Image | events.Display, data: dict[str, Any]) -> Output:
        if not item.is_result:
            return {"output_type": "display_data", "data": data, "metadata": item.metadata}
        return {
            "output_type": "execute_result",
            "execution_count": None if self.end is None else self.end.execution_count,
            "data": data,
            "metadata": item.metadata,
        }


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
