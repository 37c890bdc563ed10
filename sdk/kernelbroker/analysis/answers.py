"""The answers of the tools, as dicts with the fields that agents know."""

from __future__ import annotations

from typing import Any

from ..bundle_text import json_text
from ..result_text import join_blocks, shorten
from ..rich_outputs import Image
from . import language as languages
from .cells import MAX_TEXT_CHARS, Inputs, Ran
from .language import Language

PREVIEW_ROWS = 20
MAX_ROWS = 500


class Answer(dict[str, Any]):
    """The answer of a tool. `images` are the pictures that the code has shown."""

    images: list[Image]

    def __init__(self, fields: dict[str, Any], images: list[Image] | None = None) -> None:
        super().__init__({key: value for key, value in fields.items() if value is not None})
        self.images = images or []


def refused(session_id: str, error: str, seconds: float = 0.0) -> Answer:
    """The answer to a call whose code did not run."""
    return Answer(
        {
            "session_id": session_id,
            "success": False,
            "execution_time": duration(seconds),
            "output": "",
            "error": error,
        }
    )


def of_analysis(session_id: str, inputs: Inputs, ran: Ran, language: Language) -> Answer:
    """The answer to `analyze_data`."""
    report = ran.report
    fields: dict[str, Any] = {
        "session_id": session_id,
        "success": ran.error is None,
        "execution_time": duration(inputs.seconds + ran.seconds),
        "output": ran.output,
        "error": ran.error,
        "inputs": _inputs(inputs),
    }
    if frame := report.get("frame"):
        shape = languages.shape(frame["rows"], frame["width"], language)
        fields["dataframe"] = _dataframe(shape, frame["columns"], frame["data"])
        fields["data"] = frame["data"][:MAX_ROWS]
    elif found := report.get("dict"):
        blocks = [ran.output, found["markdown"]]
        if found["summary"] not in found["markdown"]:
            blocks.append(found["summary"])
        fields["output"] = shorten(join_blocks(blocks), MAX_TEXT_CHARS)
        fields["data"] = found["data"]
        if "rows" in found:
            fields["dataframe"] = _dataframe(
                _shape_of(found, language), found["columns"], found["data"]
            )
    elif (value := report.get("value")) is not None:
        fields["data"] = value
        text = value if isinstance(value, str) else json_text(value)
        fields["output"] = shorten(join_blocks([ran.output, text]), MAX_TEXT_CHARS)
    return Answer(fields, ran.result.images)


def of_operation(session_id: str, inputs: Inputs, ran: Ran, output_path: str) -> Answer:
    """The answer to `table_operation`."""
    return Answer(
        {
            "session_id": session_id,
            "success": ran.error is None,
            "output": ran.output,
            "output_path": output_path if ran.error is None else None,
            "inputs": _inputs(inputs),
            "execution_time": duration(inputs.seconds + ran.seconds),
            "error": ran.error,
        },
        ran.result.images,
    )


def _inputs(inputs: Inputs) -> list[dict[str, Any]] | None:
    """How each table was read, where that had to be found out."""
    return [{"name": each.name, **each.read} for each in inputs.tables if each.read] or None


def duration(seconds: float) -> str:
    """Return `0.52s`."""
    return f"{seconds:.2f}s"


def _dataframe(shape: str, columns: list[str], records: list[Any]) -> dict[str, Any]:
    return {
        "var_name": "result",
        "shape": shape,
        "columns": columns,
        "preview": records[:PREVIEW_ROWS],
    }


def _shape_of(found: dict[str, Any], language: Language) -> str:
    """The shape that the code names, in words; else that of its data."""
    match found["shape"]:
        case str(text) if text:
            return text
        case [int(rows), int(columns)]:
            return languages.shape(rows, columns, language)
    width = found.get("width", len(found["columns"]))
    return languages.shape(found["rows"], width, language)
