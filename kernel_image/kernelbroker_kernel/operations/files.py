"""Reads, lists and edits files of the project. No link is followed."""

from __future__ import annotations

import codecs
import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any, BinaryIO

from .. import workspace
from ..errors import Refused, refusing
from . import project
from .differences import nearest, unified

MAX_FILE_BYTES = 16 * 1024**2
"""Of a file that is read or edited."""
MAX_PARTLY_BYTES = 1024**3
"""Of a file of which a part is read."""
MAX_LINES = 2_000
MAX_CHARS = 256 * 1024
"""Of one answer."""
MAX_ENTRIES = 5_000
_LINE_CHARS = 4_000
_PIECE_BYTES = 64 * 1024
_CR = "\r"
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def read(
    path: str, start: int | None = None, end: int | None = None, numbers: bool = True
) -> dict[str, Any]:
    """The lines of a text from `start` to `end` (from 1, both included), with their numbers.

    Without `numbers` they are as in the file, also the end of the last one. A binary is told as such,
    without content. `sha256` is the base of an edit. Of a file that is too large to be edited, a part can
    be read.
    """
    first = 1 if start is None else start
    if first < 1 or (end is not None and end < first):
        raise Refused("bad_request", "start and end are line numbers from 1 on, and start <= end")
    with _opened(path) as (file, status):
        if status.st_size > MAX_FILE_BYTES and not (start is None and end is None):
            return _read_part(path, file, first, end, numbers)
    data, _ = content_of(path)
    result: dict[str, Any] = {
        "path": path,
        "size": len(data),
        "sha256": _digest(data),
        "binary": False,
        "encoding": None,
    }
    if (decoded := _decode(data)) is None:
        return result | {"binary": True, "content": None}
    text, encoding = decoded
    lines = text.split("\n")  # and nothing else ends a line, as for ripgrep and git
    if not lines[-1]:
        lines.pop()
    last = len(lines) if end is None else min(end, len(lines))
    shown = _shown(lines[first - 1 : min(last, first + MAX_LINES - 1)], first, numbers)
    until = first + len(shown) - 1
    if not numbers and shown and (until < len(lines) or text.endswith("\n")):
        shown.append("")
    return result | {
        "encoding": encoding,
        "content": "\n".join(shown),
        "start": first,
        "end": until,
        "total_lines": len(lines),
        "truncated": until < last,
    }


def _shown(lines: Iterable[str], first: int, numbers: bool) -> list[str]:
    """The lines of an answer, as many as it has room for."""
    shown, room = [], MAX_CHARS
    for number, line in enumerate(lines, first):
        cut = " [cut]" if len(line) > _LINE_CHARS else ""
        numbered = f"{number:6d}\t{line[:_LINE_CHARS].removesuffix(_CR)}{cut}" if numbers else line
        room -= len(numbered) + 1
        if room < 0:
            break
        shown.append(numbered)
    return shown


def _read_part(
    path: str, file: BinaryIO, first: int, end: int | None, numbers: bool
) -> dict[str, Any]:
    """A part of a large file, which is read once and never held as a whole."""
    size, digest, number, last_kept = 0, hashlib.sha256(), 0, 0
    mark, is_binary, is_within, ends_line = b"", False, False, False
    stop = first + MAX_LINES if end is None else min(end + 1, first + MAX_LINES)
    # Of what an answer has no room for, no more is kept than tells that.
    most = 4 * (_LINE_CHARS if numbers else MAX_CHARS) + 4
    wanted: list[bytearray] = []
    while piece := file.readline(_PIECE_BYTES):  # a part of a line, if that is long
        mark, size = mark or piece[:3], size + len(piece)
        if size > MAX_PARTLY_BYTES or mark.startswith((b"\xff\xfe", b"\xfe\xff")):
            raise _too_large(path, os.fstat(file.fileno()).st_size, MAX_PARTLY_BYTES)
        digest.update(piece)
        is_binary |= b"\0" in piece
        number += not is_within
        if first <= number < stop:
            if not is_within and (numbers or sum(map(len, wanted)) < most):
                wanted.append(bytearray())
                last_kept = number
            if last_kept == number and len(wanted[-1]) < most:
                wanted[-1] += piece[:most]
                ends_line = piece.endswith(b"\n")
        is_within = not piece.endswith(b"\n")
    result = {"path": path, "size": size, "sha256": digest.hexdigest(), "encoding": None}
    if is_binary:
        return result | {"binary": True, "content": None}
    lines, encoding = _decoded_lines(wanted, most)
    if first == 1 and mark == codecs.BOM_UTF8:
        lines[0], encoding = lines[0].removeprefix("\ufeff"), "utf-8-sig"
    shown = _shown(lines, first, numbers)
    until = first + len(shown) - 1
    if not numbers and shown and (until < number or ends_line):
        shown.append("")
    last = number if end is None else min(end, number)
    return result | {
        "binary": False,
        "encoding": encoding,
        "content": "\n".join(shown),
        "start": first,
        "end": until,
        "total_lines": number,
        "truncated": until < last,
    }


def _decoded_lines(lines: Iterable[bytearray], most: int) -> tuple[list[str], str]:
    """Lines of bytes as text, without their ends, and the encoding. One of `most` bytes may be cut."""
    bare = [bytes(line[:-1] if line.endswith(b"\n") else line) for line in lines]
    try:
        # Only a character at the end of a cut line may be incomplete.
        return [
            codecs.utf_8_decode(line, "strict", len(line) < most - 1)[0] for line in bare
        ], "utf-8"
    except UnicodeDecodeError:
        return [line.decode("latin-1") for line in bare], "latin-1"


def list_(path: str = ".", glob: str | None = None, depth: int = 1) -> dict[str, Any]:
    """The entries below a directory, by path; those of `.git` only if it is named."""
    if not 1 <= depth <= workspace.MAX_DEPTH:
        raise Refused("bad_request", f"depth is from 1 to {workspace.MAX_DEPTH}")
    project.root()
    top = project.names(path)
    entries: list[dict[str, Any]] = []
    folders = [(top, 1)]
    truncated = False
    for names, level in folders:  # grows while it is read: breadth first
        listed = workspace.List(names, recursive=False)
        try:
            with refusing(path):
                for _ in listed.read():
                    pass
        except Refused:
            if names == top:
                raise
            continue
        truncated |= listed.truncated
        for entry in listed.entries:
            relative = entry["path"].removeprefix(f"{project.PROJECT}/")
            name = relative.rpartition("/")[2]
            if name == ".git" and path in (".", ""):
                continue
            if glob is None or fnmatchcase(relative, glob) or fnmatchcase(name, glob):
                if len(entries) >= MAX_ENTRIES:
                    return {"path": path, "entries": entries, "truncated": True}
                entries.append({**entry, "path": project.shown(relative)})
            if entry["kind"] == "directory" and level < depth:
                folders.append(([*entry["path"].split("/")], level + 1))
    entries.sort(key=lambda each: each["path"])
    return {"path": path, "entries": entries, "truncated": truncated}


def edit(
    path: str,
    content: str | None = None,
    old: str | None = None,
    new: str | None = None,
    count: int = 1,
    base: str | None = None,
) -> dict[str, Any]:
    """Write `content`, or replace `old`, which must occur `count` times, by `new`. Returns the diff.

    Args:
        base: the `sha256` that a read returned; the edit is refused if the file has changed since.
    """
    if (content is None) == (old is None or new is None):
        raise Refused("bad_request", "give either content, or old and new")
    names = project.writable(path)
    project.root()
    before, mode = b"", None
    try:
        before, mode = content_of(path)
    except Refused as refused:
        if refused.code != "not_found" or content is None or base is not None:
            raise
    if base is not None and base != _digest(before):
        raise Refused("stale", f"{path}: it has changed since it was read; read it again")
    if (decoded := _decode(before)) is None:
        if content is None:
            raise Refused("conflict", f"{path}: it is a binary file; give its whole content")
        text, encoding = "", "utf-8"
    else:
        text, encoding = decoded
    if content is not None:
        after = content
    else:
        assert old is not None and new is not None, "checked above"
        after = _replaced(path, text, old, new, count)
    with refusing(path):
        try:
            data = after.encode(encoding)
        except UnicodeEncodeError:
            raise Refused(
                "bad_request", f"{path}: {encoding} has not all of these characters"
            ) from None
        if len(data) > MAX_FILE_BYTES:
            raise Refused("too_large", f"{path}: more than {MAX_FILE_BYTES:,} bytes")
        upload = workspace.Upload(names)
        try:
            if mode is not None:
                upload.set_mode(mode)
            upload.write(data)
            if base is not None and _digest(content_of(path)[0]) != base:
                raise Refused("stale", f"{path}: it has changed since it was read; read it again")
            upload.commit()
        finally:
            upload.close()
    relative = "/".join(names[1:])
    return {
        "path": path,
        "created": mode is None,
        "diff": unified(relative, text, after, is_new=mode is None),
        "sha256": _digest(data),
        "size": len(data),
    }


def _replaced(path: str, text: str, old: str, new: str, count: int) -> str:
    if not old or count < 1:
        raise Refused("bad_request", "old is not empty, and count is at least 1")
    if f"{_CR}\n" in text and _CR not in old:  # a reader was not shown them
        old, new = old.replace("\n", f"{_CR}\n"), new.replace("\n", f"{_CR}\n")
    if (found := text.count(old)) == count:
        return text.replace(old, new)
    if found:
        lines = islice(_lines_of(text, old), 10)
        where = ", ".join(str(number) for number in lines)
        raise Refused(
            "no_match",
            f"{path}: old occurs {found} times, not {count} (lines {where}); "
            "give more text around it, or count",
        )
    hint = nearest(text, old)
    raise Refused(
        "no_match",
        f"{path}: old does not occur in it." + (f" The nearest text:\n{hint}" if hint else ""),
    )


def _lines_of(text: str, old: str) -> Any:
    position = -1
    while (position := text.find(old, position + 1)) >= 0:
        yield text.count("\n", 0, position) + 1


@contextlib.contextmanager
def _opened(path: str) -> Iterator[tuple[BinaryIO, os.stat_result]]:
    """A file of the project. Raises Refused."""
    project.root()
    names = project.names(path)
    with refusing(path):
        try:
            descriptor = workspace.open_file(names)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise Refused("security", f"{path}: links are not followed") from error
            raise
        with os.fdopen(descriptor, "rb") as file:
            yield file, os.fstat(file.fileno())


def content_of(path: str) -> tuple[bytes, int]:
    """The content and the mode of a file. Raises Refused."""
    with _opened(path) as (file, status):
        if status.st_size > MAX_FILE_BYTES:
            raise _too_large(path, status.st_size, MAX_FILE_BYTES)
        return file.read(MAX_FILE_BYTES), stat.S_IMODE(status.st_mode)


def _too_large(path: str, size: int, most: int) -> Refused:
    how = (
        "read a part by `start` and `end`, or search it" if most == MAX_FILE_BYTES else "search it"
    )
    return Refused("too_large", f"{path}: {size:,} bytes; at most {most:,} are read: {how}")


def _decode(data: bytes) -> tuple[str, str] | None:
    """The text and its encoding; None for a binary."""
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            try:
                return data.decode(encoding), encoding
            except UnicodeDecodeError:
                return None
    if b"\0" in data:
        return None
    try:
        return data.decode(), "utf-8"
    except UnicodeDecodeError:
        return data.decode("latin-1"), "latin-1"


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
