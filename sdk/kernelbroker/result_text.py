"""A result as plain text for a person or a model to read, bounded in length."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from .protocol import events

MAX_CHARS = 20_000
"""Default length of a result's text: about 5,000 tokens."""

_MAX_NAMES = 20
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")


def output_texts(outputs: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """Each output of a notebook cell as text."""
    for output in outputs:
        match output["output_type"]:
            case "stream":
                yield terminal_text(output["text"])
            case "error":
                yield terminal_text(_error_text(output))
            case _:
                yield _bundle_text(output["data"])


def json_text(value: Any) -> str:
    """A JSON value, indented."""
    return json.dumps(value, indent=2, ensure_ascii=False)


def removed_note(names: Sequence[str]) -> str:
    """The names that a failed cell had created, in one line."""
    shown, more = names[:_MAX_NAMES], len(names) - _MAX_NAMES
    rest = f" and {more} more" if more > 0 else ""
    return f"[The cell failed, so the names that it created are removed: {', '.join(shown)}{rest}]"


def cut_note(truncated: events.Truncated) -> str:
    """The amount of cut output, in one line; empty if only lists were cut that the text does not have."""
    cuts = msgspec.to_builtins(truncated)
    shown = [
        f"{name} {amount}" for name, amount in cuts.items() if name not in ("variables", "files")
    ]
    return f"[Cut: {', '.join(shown)}]" if shown else ""


def join_blocks(blocks: Iterable[str]) -> str:
    """Join the blocks, each on a new line; the last line has no newline."""
    text = ""
    for block in blocks:
        if block:
            text += ("" if not text or text.endswith("\n") else "\n") + block
    return text.rstrip("\n")


def shorten(text: str, max_chars: int) -> str:
    """At most `max_chars` characters: the beginning and the end, with a note between them."""
    if len(text) <= max_chars:
        return text
    note = f"\n[... {len(text):,} characters in all; the middle is left out ...]\n"
    room = max_chars - len(note)
    if room <= 0:
        return text[: max(0, max_chars)]
    tail = room // 2
    return text[: room - tail] + note + text[len(text) - tail :]


def terminal_text(text: str) -> str:
    """The text without escape sequences; a carriage return overwrites its line, as on a terminal."""
    text = _ESCAPES.sub("", text).replace("\r\n", "\n")
    if "\r" not in text:
        return text
    return "\n".join(_overwritten(line) for line in text.split("\n"))


def _error_text(error: Mapping[str, Any]) -> str:
    traceback = "\n".join(error["traceback"])
    line = f"{error['ename']}: {error['evalue']}"
    return traceback if error["ename"] in traceback else f"{traceback}\n{line}".lstrip("\n")


def _overwritten(line: str) -> str:
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown


def _bundle_text(data: Mapping[str, Any]) -> str:
    for mime in ("text/plain", "text/markdown", "text/latex"):
        if isinstance(text := data.get(mime), str) and text:
            return terminal_text(text)
    return f"[{', '.join(data)}]" if data else ""
