"""Folds the events of one execution, in their order, into its result."""

from __future__ import annotations

from typing import Any

from .dataframe_info import DataFrameInfo
from .protocol import events
from .protocol.outputs import Outputs, Text
from .results import ExecutionResult
from .rich_outputs import Display, Image


class Collector:
    """Takes events with `add`; `result` is the whole, after the event that ends the execution."""

    def __init__(self) -> None:
        self._outputs = Outputs()

    def add(self, event: events.Event) -> Any:
        """Take an event. Returns what its callback gets: text, an `Image` or a `Display`, or None."""
        self._outputs.add(event)
        match event:
            case events.Stdout(content=text) | events.Stderr(content=text):
                return text
            case events.Image():
                return Image.from_event(event)
            case events.Display():
                return _display(event)
            case events.Input(prompt=prompt):
                return prompt
        return None

    def result(self) -> ExecutionResult:
        """The result of the execution, which has ended."""
        end, items = self._outputs.end, self._outputs.items
        assert end is not None, "a result needs the execution's last event"
        table, texts = end.dataframe, [item for item in items if isinstance(item, Text)]
        return ExecutionResult(
            success=end.success,
            stdout="".join(text.text for text in texts if text.name == "stdout"),
            stderr="".join(text.text for text in texts if text.name == "stderr"),
            images=[Image.from_event(item) for item in items if isinstance(item, events.Image)],
            displays=[_display(item) for item in items if isinstance(item, events.Display)],
            outputs=self._outputs.as_notebook(),
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
            sandbox=end.sandbox,
            template=end.template,
            isolation=end.isolation,
            moved=end.moved,
            removed=end.removed,
        )


def _display(event: events.Display) -> Display:
    return Display(event.data, event.metadata, event.display_id, event.is_result)
