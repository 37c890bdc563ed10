"""The tools for the files of a session's workspace. They are in all sets."""

from __future__ import annotations

import base64
import binascii
import mimetypes
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Annotated, Literal

from kernelbroker.protocol.errors import BadRequest
from mcp_types import ContentBlock, ImageContent
from pydantic import BaseModel, Field

from ..kernels.transfer import TransferFailed
from ..service import files
from ..sessions.session import Session
from .answers import MAX_CHARS, answer
from .call import Call
from .tool import InSession, Output, ToolResult, ToolSpec, hints

_MAX_ENTRIES = 500
_MAX_IMAGE_BYTES = 1536 * 1024
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")


class FilePath(InSession):
    path: Annotated[str, Field(max_length=4096)]
    """Relative to /data, such as uploads/sales.csv."""


class ListFiles(FilePath):
    path: Annotated[str, Field(max_length=4096)] = "."
    """A directory, relative to /data."""
    recursive: bool = False


class Entry(BaseModel):
    path: str
    kind: Literal["file", "directory", "symlink", "other"]
    size: int


class FileListOutput(Output):
    entries: list[Entry]
    truncated: bool
    """There are more entries than are listed."""


async def list_files(call: Call, args: ListFiles) -> ToolResult:
    """List the files of a session's workspace."""
    session = await call.session(args.session_id)
    listed = await files.list_(session, _relative(args.path), recursive=args.recursive)
    entries = [
        Entry(path=each.path, kind=each.kind, size=each.size)
        for each in listed.entries[:_MAX_ENTRIES]
    ]
    truncated = listed.truncated or len(listed.entries) > len(entries)
    lines = [
        f"{each.path}{'/' if each.kind == 'directory' else f'  {each.size:,} bytes'}"
        for each in entries
    ]
    if truncated:
        lines.append("[there are more: list a directory below]")
    output = FileListOutput(session_id=session.id, entries=entries, truncated=truncated)
    return answer("\n".join(lines) or "(no files)", output)


class ReadFile(FilePath):
    offset: Annotated[int, Field(ge=0)] = 0
    """The first byte."""
    limit: Annotated[int, Field(ge=1, le=MAX_CHARS)] = MAX_CHARS
    """How many bytes of a text to read."""


class FileOutput(Output):
    path: str
    size: int
    """Of the whole file, in bytes."""
    text: str | None = None
    """The text that was read; null if the file is not text."""
    next_offset: int | None = None
    """Where to read on; null at the end."""


async def read_file(call: Call, args: ReadFile) -> ToolResult:
    """Read a text file of the workspace, in parts if it is long, or look at a picture."""
    session = await call.session(args.session_id)
    path = _relative(args.path)
    mime = mimetypes.guess_type(path)[0] or ""
    is_image = mime in _IMAGES and args.offset == 0
    size, data = await _read(
        session, path, args.offset, _MAX_IMAGE_BYTES if is_image else args.limit
    )
    output = FileOutput(session_id=session.id, path=path, size=size)
    if is_image and len(data) == size:
        shown: list[ContentBlock] = [
            ImageContent(data=base64.b64encode(data).decode(), mime_type=mime)
        ]
        return answer(f"{path}: {mime}, {size:,} bytes", output, shown)
    end = args.offset + len(data)
    text = _text(data, is_whole=end >= size)
    if text is None:
        kind = f"{mime} " if mime else ""
        return answer(
            f"{path} is a {kind}file of {size:,} bytes, not text. Read it with code.", output
        )
    if end < size:
        end -= len(data) - len(text.encode())  # a character that was cut in two
        output.next_offset = end
    output.text = text
    more = f"\n[{size - end:,} more bytes: read on with offset={end}]" if end < size else ""
    return answer(text + more or "(empty file)", output)


class WriteFile(FilePath):
    content: str
    """The content: text, or base64."""
    encoding: Literal["utf-8", "base64"] = "utf-8"


class WrittenOutput(Output):
    path: str
    size: int


async def write_file(call: Call, args: WriteFile) -> ToolResult:
    """Create or replace a file of the workspace."""
    try:
        data = (
            args.content.encode()
            if args.encoding == "utf-8"
            else base64.b64decode(args.content, validate=True)
        )
    except (UnicodeEncodeError, binascii.Error) as exc:
        raise BadRequest(f"the content is not {args.encoding}: {exc}") from exc
    session = await call.session(args.session_id)
    path = _relative(args.path)

    async def content() -> AsyncIterator[bytes]:
        yield data

    await files.write(session, path, content(), len(data))
    output = WrittenOutput(session_id=session.id, path=path, size=len(data))
    return answer(f"{path} is written: {len(data):,} bytes.", output)


def _relative(path: str) -> str:
    """The path relative to /data. Models name absolute paths as well."""
    stripped = path.strip()
    if stripped == "/data" or stripped.startswith("/data/"):
        stripped = stripped.removeprefix("/data").lstrip("/")
    return stripped.removeprefix("./") if stripped not in ("", ".", "/") else "."


async def _read(session: Session, path: str, offset: int, limit: int) -> tuple[int, bytes]:
    """Return the size of a file, and at most `limit` of its bytes from `offset` on."""
    part = f"bytes={offset}-{offset + limit - 1}"
    async with files.read(session, path, part=part) as download:
        total = download.size
        if download.content_range is not None:
            total = int(download.content_range.rpartition("/")[2])
        if download.status == 416:
            return total, b""
        data = bytearray()
        async with aclosing(download.body.chunks()) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) >= limit:
                    break
    if download.status == 200:  # the server has sent the whole file
        return total, bytes(data[offset : offset + limit])
    if len(data) > limit:
        raise TransferFailed("the sandbox sent more than was asked for")
    return total, bytes(data)


def _text(data: bytes, *, is_whole: bool) -> str | None:
    """The bytes as text, without a character that is cut in two at the end; None if they are not text."""
    if b"\0" in data:
        return None
    for cut in range(1 if is_whole else 4):
        try:
            return data[: len(data) - cut].decode()
        except UnicodeDecodeError:
            continue
    return None


FILE_TOOLS = (
    ToolSpec(
        "list_files", "List files", ListFiles, FileListOutput, list_files, hints(read_only=True)
    ),
    ToolSpec("read_file", "Read a file", ReadFile, FileOutput, read_file, hints(read_only=True)),
    ToolSpec(
        "write_file",
        "Write a file",
        WriteFile,
        WrittenOutput,
        write_file,
        hints(destructive=True, idempotent=True),
    ),
)
