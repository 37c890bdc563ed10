"""Searches the project with ripgrep."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import Refused
from . import programs, project
from .files import content_of

MAX_MATCHES = 2_000
_TEXT_CHARS = 500
_MAX_CONTEXT = 20


def search(
    pattern: str,
    path: str = ".",
    glob: str | None = None,
    context: int = 0,
    regex: bool = True,
    max: int = 200,
) -> dict[str, Any]:
    """Lines that match, with their files and numbers. Files that git ignores are left out, and so is
    `.git`. Text is UTF-8, and Latin-1 where it is not; a line ends with LF or CRLF."""
    if not pattern:
        raise Refused("bad_request", "the pattern is empty")
    if not 0 <= context <= _MAX_CONTEXT or not 1 <= max <= MAX_MATCHES:
        raise Refused(
            "bad_request", f"context is at most {_MAX_CONTEXT}, max at most {MAX_MATCHES}"
        )
    root, place = project.root(), project.inside(path)
    argv = ["rg", "--json", "--no-config", "--hidden", "--sort=path", f"--context={context}"]
    argv += ["--no-messages", "--glob=!.git", "--max-filesize=64M", "--crlf"]
    argv += [] if glob is None else [f"--glob={glob}"]
    argv += [] if regex else ["--fixed-strings"]
    argv += ["-e", pattern, "--", str(place.relative_to(root))]
    matches, truncated = _matches(argv, root, context, max)
    if not pattern.isascii():
        latin = [argv[0], "--encoding=latin1", *argv[1:]]
        others, cut = _matches(latin, root, context, max)
        matches += _of_latin_1(others, {each["path"] for each in matches})
        matches.sort(key=lambda each: (each["path"], each["line"]))
        truncated |= cut or len(matches) > max
    return {"matches": matches[:max], "truncated": truncated}


def _matches(
    argv: list[str], root: Path, context: int, max: int
) -> tuple[list[dict[str, Any]], bool]:
    """What ripgrep finds, and whether that is not all. Raises Refused."""
    found = 0

    def enough(piece: bytes) -> bool:
        nonlocal found
        found += piece.count(b'"type":"match"')
        return found > max * 2 + 100

    ended = programs.run(argv, root, enough=enough)
    if ended.status == 2 and not ended.stdout:
        raise Refused("bad_request", f"ripgrep: {ended.stderr.strip()[:1000] or 'invalid pattern'}")
    matches: list[dict[str, Any]] = []
    before: list[dict[str, Any]] = []
    truncated = ended.is_cut
    for line in ended.stdout.splitlines():
        try:
            item = json.loads(line)
        except ValueError:
            continue  # the last line, if the output was cut
        kind, data = item["type"], item["data"]
        if kind in ("begin", "end"):
            before = []
        if kind not in ("match", "context"):
            continue
        entry = {
            "line": data["line_number"],
            "text": _text(data["lines"]).rstrip("\r\n")[:_TEXT_CHARS],
        }
        if kind == "context":
            if (
                matches
                and matches[-1]["path"] == _path(data)
                and _follows(matches[-1], entry, context)
            ):
                matches[-1]["after"].append(entry["text"])
            before = [*before, entry][-context:]
            continue
        if len(matches) >= max:
            truncated = True
            break
        columns = [[each["start"], each["end"]] for each in data["submatches"][:20]]
        earlier = [each["text"] for each in before if each["line"] >= entry["line"] - context]
        matches.append(
            {"path": _path(data), **entry, "columns": columns, "before": earlier, "after": []}
        )
        before = []
    return matches, truncated


def _of_latin_1(matches: list[dict[str, Any]], known: set[str]) -> Iterator[dict[str, Any]]:
    """Return the matches in files that are not UTF-8, except in `known` ones, which have some already."""
    is_latin: dict[str, bool] = dict.fromkeys(known, False)
    for match in matches:
        if (path := match["path"]) not in is_latin:
            try:
                is_latin[path] = not _is_utf_8(content_of(path)[0])
            except Refused:  # it is not there any more, or too large
                is_latin[path] = False
        if is_latin[path]:
            yield match


def _is_utf_8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _follows(match: dict[str, Any], entry: dict[str, Any], context: int) -> bool:
    return bool(match["line"] < entry["line"] <= match["line"] + context)


def _path(data: dict[str, Any]) -> str:
    return _text(data["path"], "utf-8").removeprefix("./")


def _text(value: dict[str, str], encoding: str = "latin-1") -> str:
    """A text of ripgrep, which sends base64 for what is not UTF-8."""
    if "text" in value:
        return value["text"]
    return base64.b64decode(value["bytes"]).decode(encoding, errors="backslashreplace")
