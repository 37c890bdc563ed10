"""The output and the result of an execution, as one value."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import notebook, result_text
from .bundle_text import json_text
from .dataframe_info import DataFrameInfo
from .protocol import events
from .protocol.errors import ExecutionFailed
from .protocol.findings import Finding, SuggestedSandbox
from .protocol.outputs import Output
from .rich_outputs import Display, Image


@dataclass(frozen=True, slots=True, repr=False)
class ExecutionResult:
    """All that one execution produced. `print(result)` shows `text`.

    Attributes:
        success: whether the cell ran to its end.
        stdout, stderr: the text as written, with carriage returns; a traceback is at the end of `stderr`.
        images, displays: the pictures, and all other rich output, each in order.
        outputs: everything in order, as in a notebook file: `stream`, `display_data`,
            `execute_result` and `error` outputs of nbformat 4, as dicts.
        dataframe: properties and preview of the table that `result_var` names.
        return_value: any other value that `result_var` names, as JSON, or a summary of it.
        variables: the variables that the session holds.
        files: workspace files that the cell, or a process of the sandbox since the last cell, has created
            or changed. Of more than 200, those near the top and the newest.
        exit_code: of a shell cell, or of `sys.exit`.
        error: one line, `Name: message`, or None.
        error_detail: name and message of the error, the traceback, and the cause.
        execution_time: seconds, measured in the kernel; None if the kernel died.
        truncated: the amounts of output that were cut, or None.
        kernel_restarted: the session's state was lost.
        findings: the warnings of the broker's policy about the code.
        sandbox: the kind of sandbox where it ran, in a session whose template is `auto`; `REJECT` if it
            must not run.
        template, isolation: of that sandbox.
        moved: the session moved to that sandbox before: `from_`, `to`, and what was `left`.
        removed: the names that the failed cell had created; they are gone, see `on_error`.
    """

    success: bool
    stdout: str = ""
    stderr: str = ""
    images: list[Image] = field(default_factory=list)
    displays: list[Display] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    dataframe: DataFrameInfo | None = None
    return_value: Any = None
    variables: list[events.Variable] = field(default_factory=list)
    files: list[events.FileChange] = field(default_factory=list)
    exit_code: int | None = None
    error: str | None = None
    error_detail: events.ErrorDetail | None = None
    execution_time: float | None = None
    execution_count: int | None = None
    truncated: events.Truncated | None = None
    kernel_restarted: bool = False
    findings: list[Finding] = field(default_factory=list)
    execution_id: str = ""
    sandbox: SuggestedSandbox | None = None
    template: str | None = None
    isolation: str | None = None
    moved: events.Moved | None = None
    removed: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The output as a person would read it, in at most 20,000 characters. See `as_text`."""
        return self.as_text()

    def as_text(self, max_chars: int = result_text.MAX_CHARS) -> str:
        """Return the output as a person would read it: printed text, values, traceback, reported variable.

        The outputs are in their order; pictures and displays are represented by their `text/plain`. Escape
        sequences are removed, and carriage returns overwrite their line. Notes in brackets report a
        restarted kernel and output that was cut.

        Args:
            max_chars: the middle of longer text is replaced by a note.
        """
        blocks = [*result_text.output_texts(self.outputs), *self._notes()]
        return result_text.shorten(result_text.join_blocks(blocks), max_chars)

    def raise_for_error(self) -> ExecutionResult:
        """Return the result if the cell succeeded.

        Raises:
            ExecutionFailed: the cell failed. The message is `error`, the traceback is its note, and
                `result` is this result.
        """
        if self.success:
            return self
        failure = ExecutionFailed(self.error or "the cell failed", result=self)
        if self.error_detail is not None and self.error_detail.traceback:
            failure.add_note("\n".join(self.error_detail.traceback))
        raise failure

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        parts = [
            f"stdout={self.stdout[:60]!r}" if self.stdout else "",
            f"images={len(self.images)}" if self.images else "",
            f"dataframe={self.dataframe.title!r}" if self.dataframe else "",
            f"return_value={self.return_value!r:.60}" if self.return_value is not None else "",
            f"error={self.error!r}" if self.error else "",
        ]
        facts = ", ".join([f"success={self.success}", *filter(None, parts)])
        return f"ExecutionResult({facts})"

    def _repr_html_(self) -> str:
        parts = [
            notebook.text_html(self.stdout),
            notebook.text_html(self.stderr, is_error=True),
            *(notebook.image_html(image.mime, image.content) for image in self.images),
            *(notebook.display_html(display.data) for display in self.displays),
        ]
        if self.dataframe is not None:
            parts.append(notebook.table_html(self.dataframe, self.dataframe.title))
        if self.return_value is not None:
            parts.append(notebook.json_html(self.return_value))
        if self.error and self.error not in self.stderr:
            parts.append(notebook.text_html(self.error, is_error=True))
        return f"<div>{''.join(parts)}</div>"

    def _notes(self) -> list[str]:
        """Notes for the reader besides the outputs."""
        notes = []
        if self.dataframe is not None:
            notes.append(f"{self.dataframe.title}\n{self.dataframe.markdown}")
        elif self.return_value is not None:
            notes.append(json_text(self.return_value))
        if self.error and self.error_detail is None:
            notes.append(self.error)
        if self.removed:
            notes.append(result_text.removed_note(self.removed))
        if self.kernel_restarted:
            notes.append("[The kernel was restarted: all variables are gone.]")
        if self.truncated is not None:
            notes.append(result_text.cut_note(self.truncated))
        return notes
