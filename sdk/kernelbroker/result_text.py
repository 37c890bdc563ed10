"""A result as plain text for a person or a model to read, bounded in length."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from .bundle_text import bundle_text
from .protocol import events

MAX_CHARS = 20_000
"""Default length of a result's text: about 5,000 tokens."""

_MAX_NAMES = 20
_FRAME = re.compile(r"(?:Cell In|Input In|File )")
_LIBRARY_FRAME = re.compile(
    r"File (?:<frozen |[^:]*/(?:lib/python\d[^/:]*|site-packages|dist-packages)/|[^:]*\.pyx:)"
)
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


def useful_traceback(text: str) -> str:
    """Return IPython's traceback without the frames inside of libraries, but for the place of the last one.

    The user's frames and the messages are kept, of each error of a chain.
    """
    kept, left_out = list[str](), 0
    frames = list(_frames(text.split("\n")))
    for number, lines in enumerate(frames, 1):
        if not _LIBRARY_FRAME.match(lines[0]):
            kept += _told(left_out) + lines
            left_out = 0
            continue
        # The source's lines have numbers, also those without text. So the first empty line ends them.
        end = lines.index("") if "" in lines else len(lines)
        if number == len(frames):
            kept += [*_told(left_out), lines[0], *lines[end:]]
        elif any(lines[end:]):  # the message of an error that led to the next one
            kept += [*_told(left_out + 1), *lines[end + 1 :]]
            left_out = 0
        else:
            left_out += 1
    return "\n".join(kept)


def _frames(lines: Sequence[str]) -> Iterator[list[str]]:
    """The lines of each frame; first those before the first one."""
    begun: list[str] = []
    for line in lines:
        if _FRAME.match(line) and begun:
            yield begun
            begun = []
        begun.append(line)
    yield begun


def _told(left_out: int) -> list[str]:
    return [f"[... frames inside of libraries: {left_out} ...]", ""] if left_out else []


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
    traceback = useful_traceback(_ESCAPES.sub("", "\n".join(error["traceback"])))
    line = f"{error['ename']}: {error['evalue']}"
    return traceback if error["ename"] in traceback else f"{traceback}\n{line}".lstrip("\n")


def _overwritten(line: str) -> str:
    shown = ""
    for part in line.split("\r"):
        shown = part + shown[len(part) :]
    return shown


def _bundle_text(data: Mapping[str, Any]) -> str:
    return terminal_text(bundle_text(data)) or (f"[{', '.join(data)}]" if data else "")
