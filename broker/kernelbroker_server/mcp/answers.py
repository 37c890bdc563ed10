"""Results of tools: text and pictures for the model, structured content for the program.

All fits a model's context: the text is that of `ExecutionResult.as_text`, and the structured content is
bounded. Each result names the session, in both.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import msgspec
from kernelbroker.dataframe_info import DataFrameInfo
from kernelbroker.protocol.events import Cause, ErrorDetail, Truncated
from kernelbroker.protocol.outputs import Output as NotebookOutput
from kernelbroker.result_text import shorten, useful_traceback
from kernelbroker.results import ExecutionResult
from kernelbroker.rich_outputs import Image
from mcp_types import CallToolResult, ContentBlock, ImageContent, TextContent
from pydantic import BaseModel

from .tool import Output

MAX_CHARS = 20_000
_STREAM_CHARS = 2_000
"""Of each stream by itself: `output` has both, and a model reads all that is sent."""
"""Of the text of a result."""
_MAX_IMAGES = 8
_MAX_IMAGE_CHARS = 2 * 1024**2
"""Base64 of all pictures of a result."""
_MAX_RECORDS_CHARS = 40_000
_MAX_VALUE_CHARS = 10_000
_MAX_FILES = 50
_MODEL_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The formats that models read."""


class Error(BaseModel):
    """Why a cell failed."""

    name: str
    message: str
    cause: Cause | str


class File(BaseModel):
    """A file that the cell created or changed: its path below /data, and its size in bytes."""

    path: str
    size: int


class Table(BaseModel):
    """Rows of a table. `shape` is that of the whole table; `records` begin at row `offset`."""

    name: str
    kind: str
    shape: tuple[int, int]
    columns: list[str]
    dtypes: dict[str, str]
    offset: int = 0
    records: list[dict[str, Any]]


class CellOutput(Output):
    """The result of a cell."""

    execution_id: str
    success: bool
    output: str
    """What the cell printed and showed, as text."""
    error: Error | None = None
    execution_time: float | None = None
    """In seconds."""
    value: Any = None
    """The value of the last expression, or of `result_var`."""
    table: Table | None = None
    """The table that is the last expression's value, or that `result_var` names: its first rows."""
    stdout: str = ""
    """What it wrote to standard output. Of a long text the middle is left out here, not in `output`."""
    stderr: str = ""
    exit_code: int = 0
    """That of a shell; 0 or 1 in other languages."""
    sandbox_type: str = ""
    """The kind of sandbox: subprocess (a jail), docker_simple (a container) or aio_sandbox."""
    images: int = 0
    """The number of pictures that the cell has shown."""
    files: list[File] = []
    kernel_restarted: bool = False
    """All variables are lost."""


def of_execution(
    session_id: str, result: ExecutionResult, sandbox_type: str, *, is_last_value: bool = False
) -> CallToolResult:
    """Return the result of a cell.

    Args:
        sandbox_type: the kind of sandbox in which it ran.
        is_last_value: the reported variable is the value of the last expression, which the output has.
    """
    if is_last_value:
        result = _with_last_value(result)
    shown = _for_reading(result, is_last_value=is_last_value)
    text = shown.as_text(MAX_CHARS)
    shown_pictures, notes = pictures(result.images)
    detail = result.error_detail
    output = CellOutput(
        session_id=session_id,
        execution_id=result.execution_id,
        success=result.success,
        output=text,
        error=None if detail is None else _error(detail),
        execution_time=result.execution_time,
        value=_bounded(result.return_value),
        table=None if result.dataframe is None else table_of(result.dataframe),
        stdout=shorten(result.stdout, _STREAM_CHARS),
        stderr=shorten(result.stderr, _STREAM_CHARS),
        exit_code=result.exit_code if result.exit_code is not None else int(not result.success),
        sandbox_type=result.sandbox or sandbox_type,
        images=len(result.images),
        files=[File(path=each.path, size=each.size) for each in result.files[:_MAX_FILES]],
        kernel_restarted=result.kernel_restarted,
    )
    words = [text or "(no output)", *notes, *_files_note(output)]
    return answer("\n".join(words), output, shown_pictures, is_error=not result.success)


def answer(
    text: str, output: Output, pictures: Sequence[ContentBlock] = (), *, is_error: bool = False
) -> CallToolResult:
    """Return a result that names its session in words, too."""
    words = (
        f'{text}\n\n[session_id: "{output.session_id}". Pass it to the next call to go on here.]'
    )
    content = output.model_dump(mode="json", exclude_none=True)
    return CallToolResult(
        content=[TextContent(text=words), *pictures],
        structured_content=_clean(content),
        is_error=is_error,
    )


def failure(
    message: str, code: str, session_id: str | None, retry_after: float | None = None
) -> CallToolResult:
    """Return the error of a tool."""
    structured: dict[str, Any] = {"error": {"name": code, "message": message}}
    if session_id is not None:
        structured["session_id"] = session_id
    if retry_after is not None:
        structured["retry_after"] = retry_after
    text = f"{code}: {message}"
    return CallToolResult(
        content=[TextContent(text=_clean(text))],
        structured_content=_clean(structured),
        is_error=True,
    )


def table_of(info: DataFrameInfo, offset: int = 0) -> Table:
    """Return the previewed rows of a table, as many as fit."""
    records: list[dict[str, Any]] = []
    size = 0
    for record in info.preview:
        size += len(json.dumps(record, ensure_ascii=False))
        if size > _MAX_RECORDS_CHARS and records:
            break
        records.append(record)
    return Table(
        name=info.var_name,
        kind=info.kind,
        shape=info.shape,
        columns=info.columns,
        dtypes=info.dtypes,
        offset=offset,
        records=records,
    )


def picture(image: Image) -> ImageContent | None:
    """Return a picture as content; None if models cannot read its format, or it is empty."""
    if image.mime not in _MODEL_IMAGES or not image.content:
        return None
    return ImageContent(data=base64.b64encode(image.content).decode(), mime_type=image.mime)


def _error(detail: ErrorDetail) -> Error:
    message = detail.value[:_MAX_VALUE_CHARS]
    return Error(name=detail.name, message=message, cause=detail.cause)


def pictures(images: Sequence[Image]) -> tuple[list[ContentBlock], list[str]]:
    """Return the pictures that fit, and a note of those that do not."""
    shown: list[ContentBlock] = []
    left, room = 0, _MAX_IMAGE_CHARS
    for image in images:
        content = picture(image)
        if content is None or len(content.data) > room or len(shown) >= _MAX_IMAGES:
            left += 1
            continue
        room -= len(content.data)
        shown.append(content)
    note = (
        f"[{left} of {len(images)} pictures are not shown here: save them to files to look at them]"
    )
    return shown, [note] if left else []


def _files_note(output: CellOutput) -> list[str]:
    if not output.files:
        return []
    names = ", ".join(each.path for each in output.files[:10])
    more = len(output.files) - 10
    return [f"[files written: {names}{f' and {more} more' if more > 0 else ''}]"]


def _with_last_value(result: ExecutionResult) -> ExecutionResult:
    """The result, in which the report is that of this cell's value; without one it was an older value."""
    truncated = result.truncated and msgspec.structs.replace(result.truncated, report=None)
    if truncated == Truncated():
        truncated = None
    result = dataclasses.replace(result, truncated=truncated)
    if any(each["output_type"] == "execute_result" for each in result.outputs):
        return result
    return dataclasses.replace(result, dataframe=None, return_value=None)


def _for_reading(result: ExecutionResult, *, is_last_value: bool) -> ExecutionResult:
    """The result with short tracebacks, and with the last expression's value once."""
    outputs = [_short(output) for output in result.outputs]
    value = result.return_value
    if is_last_value:
        value = None
        if result.dataframe is not None:
            outputs = [each for each in outputs if each["output_type"] != "execute_result"]
    return dataclasses.replace(result, outputs=outputs, return_value=value)


def _short(output: NotebookOutput) -> NotebookOutput:
    if output["output_type"] != "error":
        return output
    return {**output, "traceback": useful_traceback("\n".join(output["traceback"])).split("\n")}


def _bounded(value: Any) -> Any:
    """The value, or the beginning of its JSON if it is long."""
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False)
    return value if len(text) <= _MAX_VALUE_CHARS else text[:_MAX_VALUE_CHARS] + "…"


def _clean(value: Any) -> Any:
    """The value without lone surrogates, which JSON in UTF-8 cannot hold."""
    match value:
        case str():
            return value.encode("utf-8", "backslashreplace").decode()
        case list():
            return [_clean(each) for each in value]
        case dict():
            return {_clean(key): _clean(each) for key, each in value.items()}
    return value
