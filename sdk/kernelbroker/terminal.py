"""An execution's events as they look on a terminal or in a pipe.

Output of a cell is untrusted, and a terminal obeys what it is sent: titles, clipboards and cursors can
be set by escape sequences. On a terminal only colours, tabs, line ends and carriage returns pass; into
a pipe or file everything goes as it is.
"""

from __future__ import annotations

import base64
import json
import re
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TextIO

import msgspec

from .dataframe_info import DataFrameInfo
from .protocol import events
from .rich_outputs import Display, Image

_CONTROLS = re.compile(
    r"(\x1b\[[0-9;:]*m)"  # colours: kept
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # other control sequences
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"  # strings: titles, clipboard, graphics
    r"|\x1b(?:[ -/]+[0-~]|[0-OQ-WYZ\\`-~])"  # short ones: character sets, reset
    r"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # other control characters
)
_CELL = re.compile(r"(?<!\\)(?:\\\\)*\|")
_KITTY_CHUNK = 4096
_RED, _YELLOW = "\x1b[31m", "\x1b[33m"


class Renderer:
    """Writes events: output to `out`, errors and remarks to `err`, pictures into `images` or inline.

    On a terminal stderr is red and remarks are yellow, and the cell's colours pass, unless the environment
    has NO_COLOR (https://no-color.org).

    Args:
        images: where pictures are saved; None for the current directory, unless the terminal, by its
            `environ`, can show them itself.
    """

    def __init__(
        self, out: TextIO, err: TextIO, *, images: Path | None, environ: Mapping[str, str]
    ) -> None:
        self._out = out
        self._err = err
        self._directory = images or Path()
        self._inline = _inline_format(environ) if images is None and out.isatty() else None
        self._at_line_start = True
        dumb = environ.get("TERM", "dumb") == "dumb"
        self._paints = not dumb and not environ.get("NO_COLOR")
        self._keeps_colours = not environ.get("NO_COLOR")

    def show(self, event: events.Event) -> None:
        match event:
            case events.Stdout(content=text):
                self._write(text)
            case events.Stderr(content=text):
                self._print(self._err, text, _RED)
            case events.Image():
                self._image(Image.from_event(event))
            case events.Display(data=data):
                if text := Display(data).text:
                    self._line(text)
            case events.Result():
                self._result(event)
            case events.Started() | events.Clear() | events.Input():
                pass

    def remark(self, text: str) -> None:
        """Write a note of this program, not of the cell."""
        self._print(self._err, f"kernelbroker: {text}\n", _YELLOW)

    def _result(self, result: events.Result) -> None:
        if result.dataframe is not None:
            table = DataFrameInfo.of(result.dataframe)
            self._line(f"{table.title}\n{aligned(table.markdown)}")
        elif result.return_value is not None:
            self._line(json.dumps(result.return_value, indent=2, ensure_ascii=False))
        detail = result.error_detail
        if result.error and not (detail and detail.cause == "exception" and detail.traceback):
            # The traceback of an exception was already printed as stderr; a timeout has none.
            self.remark(result.error)
        if result.kernel_restarted:
            self.remark("the kernel was restarted, and the session's state is lost")
        if result.truncated is not None:
            cuts = msgspec.to_builtins(result.truncated)
            self.remark("cut: " + ", ".join(f"{what} {how}" for what, how in cuts.items()))

    def _image(self, image: Image) -> None:
        if self._inline == "iterm":
            self._out.write(_iterm(image))
        elif self._inline == "kitty" and image.mime == "image/png":
            self._out.write(_kitty(image))
        else:
            self.remark(f"picture saved: {_save(image, self._directory)}")
            return
        self._out.write("\n")
        self._out.flush()

    def _line(self, text: str) -> None:
        self._write(("" if self._at_line_start else "\n") + text + "\n")

    def _write(self, text: str) -> None:
        if text:
            self._print(self._out, text)
            self._at_line_start = text.endswith("\n")

    def _print(self, stream: TextIO, text: str, colour: str = "") -> None:
        if stream.isatty():
            text = harmless(text, colours=self._keeps_colours)
            if colour and self._paints and text.strip():
                text = colour + text
            if "\x1b" in text:
                text += "\x1b[0m"  # The cell's colours must not continue in later output.
        stream.write(text)
        stream.flush()


def harmless(text: str, *, colours: bool = True) -> str:
    """The text without control characters and escape sequences; `colours` keeps those of colours."""
    return _CONTROLS.sub(lambda match: (match[1] or "") if colours else "", text)


def aligned_rows(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of texts as lines, with columns of equal width."""
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            text + " " * (width - _width(text)) for text, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def aligned(markdown: str) -> str:
    """A markdown table with padded columns."""
    rows = [_split(line) for line in markdown.splitlines()]
    if len(rows) < 2 or any(len(row) != len(rows[0]) for row in rows):
        return markdown
    widths = [max(3, *(_width(row[i]) for row in rows)) for i in range(len(rows[0]))]
    rows[1] = ["-" * width for width in widths]
    return "\n".join(
        "| "
        + " | ".join(
            cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)
        )
        + " |"
        for row in rows
    )


def _split(line: str) -> list[str]:
    """The cells of a row; an escaped pipe is part of one."""
    cells, start = [], 0
    for match in _CELL.finditer(line):
        cells.append(line[start : match.end() - 1].strip())
        start = match.end()
    return cells[1:]


def _width(text: str) -> int:
    """Columns on a terminal: wide characters take two, combining ones none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _save(image: Image, directory: Path) -> Path:
    """Save under the first free name, so that no file is overwritten."""
    directory.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        path = directory / f"figure-{number}{image.suffix}"
        try:
            with path.open("xb") as file:
                file.write(image.content)
            return path
        except FileExistsError:
            number += 1


def _inline_format(environ: Mapping[str, str]) -> str | None:
    if "iTerm" in (environ.get("TERM_PROGRAM", "") + environ.get("LC_TERMINAL", "")):
        return "iterm"
    if environ.get("TERM") == "xterm-kitty" or "KITTY_WINDOW_ID" in environ:
        return "kitty"
    return None


def _iterm(image: Image) -> str:
    data = base64.b64encode(image.content).decode("ascii")
    return f"\x1b]1337;File=inline=1;size={len(image.content)}:{data}\x07"


def _kitty(image: Image) -> str:
    data = base64.b64encode(image.content).decode("ascii")
    chunks = [data[i : i + _KITTY_CHUNK] for i in range(0, len(data), _KITTY_CHUNK)] or [""]
    return "".join(
        f"\x1b_G{'a=T,f=100,' if i == 0 else ''}m={int(i < len(chunks) - 1)};{chunk}\x1b\\"
        for i, chunk in enumerate(chunks)
    )
