"""What an execution yielded, as one value: text, pictures, a table, variables, an error.

`Collector` folds events into an `ExecutionResult`. Results, pictures and displays show themselves in
notebooks; what they show there, and what not, is told in `notebook.py`.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from . import notebook
from .protocol import events
from .protocol.errors import ExecutionFailed
from .protocol.findings import Finding
from .tables import DataFrameInfo


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: `data` is text for `image/svg+xml`, else bytes, empty if the cell sent none.

    `width` and `height` are in pixels where they are known.
    """

    mime: str
    data: bytes | str = field(repr=False)
    width: int | None = None
    height: int | None = None

    @classmethod
    def from_event(cls, event: events.Image) -> Image:
        data: bytes | str = event.content
        if event.mime != "image/svg+xml":
            try:
                data = base64.b64decode(event.content)
            except (binascii.Error, ValueError):
                data = b""  # A cell can show anything under any name.
        return cls(event.mime, data, event.width, event.height)

    @property
    def content(self) -> bytes:
        """The picture as the bytes of a file."""
        if isinstance(self.data, str):
            return self.data.encode("utf-8", "backslashreplace")
        return self.data

    @property
    def suffix(self) -> str:
        """The ending of a file's name for this format, with its dot."""
        return {
            "image/png": ".png",
            "image/jpeg": ".jpg",
            "image/gif": ".gif",
            "image/webp": ".webp",
            "image/svg+xml": ".svg",
        }.get(self.mime, ".bin")

    def save(self, path: str | Path) -> Path:
        """Write the picture to `path`, and return it."""
        path = Path(path)
        path.write_bytes(self.content)
        return path

    def _repr_png_(self) -> bytes | None:
        return self.content if self.mime == "image/png" else None

    def _repr_jpeg_(self) -> bytes | None:
        return self.content if self.mime == "image/jpeg" else None

    def _repr_html_(self) -> str | None:
        # No _repr_svg_: some front ends put SVG, with its scripts, straight into their own page.
        return None if self.mime in ("image/png", "image/jpeg") else notebook.image_html(self)


@dataclass(frozen=True, slots=True)
class Display:
    """A rich output as its MIME bundle. It comes from untrusted code: `data["text/html"]` most of all."""

    data: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    display_id: str | None = None

    @property
    def text(self) -> str:
        """The bundle's `text/plain`, or empty."""
        text = self.data.get("text/plain", "")
        return text if isinstance(text, str) else ""

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return notebook.safe_bundle(self)


@dataclass(frozen=True, slots=True, repr=False)
class ExecutionResult:
    """All that one execution yielded.

    Attributes:
        success: whether the cell ran to its end.
        stdout, stderr: as written, carriage returns and all; a traceback ends up in `stderr`.
        images, displays: the pictures, and all other rich output, each in order.
        dataframe: the table that `result_var` named.
        return_value: JSON of anything else that it named, or of its summary.
        variables: what the session holds.
        files: workspace files that were created or changed.
        exit_code: of a shell cell.
        error: one line, `Name: message`, or None.
        error_detail: its parts, the traceback, and the cause.
        execution_time: seconds, measured in the kernel; None where the kernel died.
        truncated: what was cut, or None.
        kernel_restarted: the session's state was lost.
        findings: what the broker's policy warns of in the code.
    """

    success: bool
    stdout: str = ""
    stderr: str = ""
    images: list[Image] = field(default_factory=list)
    displays: list[Display] = field(default_factory=list)
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

    def raise_for_error(self) -> ExecutionResult:
        """The result itself if the cell succeeded.

        Raises:
            ExecutionFailed: it did not; the message is `error`, and the traceback is its note.
        """
        if self.success:
            return self
        failure = ExecutionFailed(self.error or "the cell failed")
        if self.error_detail is not None and self.error_detail.traceback:
            failure.add_note("\n".join(self.error_detail.traceback))
        raise failure

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
        return notebook.result_html(self)


class Collector:
    """Folds the events of one execution, in their order, into its result."""

    def __init__(self) -> None:
        self._stdout: list[str] = []
        self._stderr: list[str] = []
        self._images: list[Image] = []
        self._displays: list[Display] = []
        self._clear_is_due = False
        self._end: events.Result | None = None

    def add(self, event: events.Event) -> Any:
        """Take an event. An output gives what its callback gets: text, an `Image` or a `Display`."""
        match event:
            case events.Stdout(content=text):
                self._before_output()
                self._stdout.append(text)
                return text
            case events.Stderr(content=text):
                self._before_output()
                self._stderr.append(text)
                return text
            case events.Image():
                self._before_output()
                image = Image.from_event(event)
                self._images.append(image)
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
        """The whole, after the event that ends it."""
        end = self._end
        assert end is not None, "a result needs the execution's last event"
        table = end.dataframe
        return ExecutionResult(
            success=end.success,
            stdout="".join(self._stdout),
            stderr="".join(self._stderr),
            images=self._images,
            displays=self._displays,
            dataframe=None if table is None else DataFrameInfo(**msgspec.structs.asdict(table)),
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

    def _display(self, event: events.Display) -> Display:
        display = Display(event.data, event.metadata, event.display_id)
        if event.update:
            shown = [i for i, d in enumerate(self._displays) if d.display_id == event.display_id]
            for i in shown:
                self._displays[i] = display
            if shown:
                return display
        # An update of what is not here (a picture, another execution's display) is better than nothing.
        self._before_output()
        self._displays.append(display)
        return display

    def _before_output(self) -> None:
        if self._clear_is_due:
            self._clear_is_due = False
            for output in (self._stdout, self._stderr, self._images, self._displays):
                output.clear()
