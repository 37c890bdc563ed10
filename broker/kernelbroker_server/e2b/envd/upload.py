"""Request bodies that become files of a sandbox, streamed: one file as it is, or several as multipart."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kernelbroker.protocol.errors import BadRequest, Conflict, RequestError, TooLarge
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from ...service import files
from ...sessions.session import Session
from .places import Place

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_Event: TypeAlias = tuple[str, bytes]
_QUEUED_CHUNKS = 2
_CLIENT_TIMEOUT_S = 60.0
"""How long a client may send nothing."""
_UNPACKED_BYTES = 512 * 1024
MAX_FILES = 1000
"""Of one request."""


class Sink(Protocol):
    """Takes a request's body."""

    async def feed(self, data: bytes) -> None:
        """Take a piece of the body, when there is room for it. Raises RequestError."""

    async def finish(self) -> list[Place]:
        """End the body. Returns the files, when they are stored. Raises RequestError."""

    def cancel(self) -> None:
        """Give up. A file that is not complete is not left behind."""


class OneFile:
    """The whole body is one file.

    Args:
        length: of the body; None if unknown.
        metadata: texts by key that are kept with the file.
    """

    def __init__(
        self,
        session: Session,
        place: Place,
        length: int | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> None:
        self.place = place
        self._metadata = metadata
        self._limit = limit = session.limits.max_file_bytes
        if length is not None and length > limit:
            raise _too_large(limit)
        self._size = 0
        self._chunks: asyncio.Queue[bytes] = asyncio.Queue(_QUEUED_CHUNKS)
        self._length = length
        self._task = asyncio.create_task(
            self._write(session), name=f"upload to session {session.id}"
        )

    async def feed(self, data: bytes) -> None:
        self._size += len(data)
        if self._size > self._limit:
            self.cancel()
            raise _too_large(self._limit)
        if data:
            await self._put(data)

    async def finish(self) -> list[Place]:
        await self._put(b"")
        try:
            await self._task
        except Conflict as exc:
            raise BadRequest(exc.message) from exc
        return [self.place]

    def cancel(self) -> None:
        self._task.cancel()

    async def _write(self, session: Session) -> None:
        place = self.place
        async with session.streams.transfers:
            await files.write(
                session,
                place.path,
                self._incoming(),
                self._length,
                system=place.system,
                metadata=self._metadata,
            )

    async def _put(self, data: bytes) -> None:
        """Queue a piece, or notice that the upload has ended before."""
        put = asyncio.ensure_future(self._chunks.put(data))
        try:
            await asyncio.wait([put, self._task], return_when=asyncio.FIRST_COMPLETED)
        finally:
            put.cancel()

    async def _incoming(self) -> AsyncGenerator[bytes, None]:
        while True:
            try:
                async with asyncio.timeout(_CLIENT_TIMEOUT_S):
                    chunk = await self._chunks.get()
            except TimeoutError:
                raise BadRequest(
                    f"the client sent nothing for {_CLIENT_TIMEOUT_S:g} s; upload it again"
                ) from None
            if not chunk:
                return
            yield chunk


class Unpacked:
    """Decompresses a body that is gzip."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._unpack = zlib.decompressobj(wbits=31)

    async def feed(self, data: bytes) -> None:
        while data:
            try:
                unpacked = self._unpack.decompress(data, _UNPACKED_BYTES)
            except zlib.error as exc:
                raise BadRequest("the body is no valid gzip") from exc
            data = self._unpack.unconsumed_tail
            if unpacked:
                await self._sink.feed(unpacked)

    async def finish(self) -> list[Place]:
        if not self._unpack.eof:
            raise BadRequest("the body is no complete gzip")
        return await self._sink.finish()

    def cancel(self) -> None:
        self._sink.cancel()


class Multipart:
    """Each part `file` of the body is a file.

    Args:
        place_of: the place of a file, by its name in the body. May raise BadRequest.
        metadata: texts by key that are kept with each file.
    """

    def __init__(
        self,
        session: Session,
        content_type: str,
        place_of: Callable[[str], Place],
        metadata: Mapping[str, str],
    ) -> None:
        self._session = session
        self._metadata = metadata
        self._place_of = place_of
        self._events: list[_Event] = []
        self._disposition = _Header()
        self._current: OneFile | None = None
        self._written: list[Place] = []
        self._is_complete = False
        _, options = parse_options_header(content_type)
        try:
            self._parser = MultipartParser(options.get(b"boundary", b""), self._callbacks())
        except FormParserError as exc:
            raise BadRequest(f"the multipart body's boundary is invalid: {exc}") from exc
        if not options.get(b"boundary"):
            raise BadRequest("the Content-Type of the multipart body has no boundary")

    async def feed(self, data: bytes) -> None:
        try:
            self._parser.write(data)
        except FormParserError as exc:
            raise BadRequest(f"the multipart body is invalid: {exc}") from exc
        events, self._events = self._events, []
        for kind, piece in events:
            match kind:
                case "begin":
                    self._disposition = _Header()
                case "name" | "value" | "header":
                    self._disposition.take(kind, piece)
                case "open":
                    self._open()
                case "data" if self._current is not None:
                    await self._current.feed(piece)
                case "close" if self._current is not None:
                    self._written += await self._current.finish()
                    self._current = None
                case "end":
                    self._is_complete = True

    async def finish(self) -> list[Place]:
        if not self._is_complete:
            raise BadRequest("the multipart body is incomplete")
        if not self._written:
            raise BadRequest("the multipart body has no part 'file' with a file name")
        return self._written

    def cancel(self) -> None:
        if self._current is not None:
            self._current.cancel()

    def _open(self) -> None:
        _, options = parse_options_header(self._disposition.content)
        if options.get(b"name") != b"file":
            return
        if len(self._written) >= MAX_FILES:
            raise BadRequest(f"a request has at most {MAX_FILES:,} files; send several")
        name = options.get(b"filename", b"").decode("utf-8", "surrogateescape")
        self._current = OneFile(self._session, self._place_of(name), metadata=self._metadata)

    def _callbacks(self) -> MultipartCallbacks:
        def mark(kind: str) -> Callable[[], None]:
            return lambda: self._events.append((kind, b""))

        def keep(kind: str) -> Callable[[bytes, int, int], None]:
            return lambda data, start, end: self._events.append((kind, data[start:end]))

        return {
            "on_part_begin": mark("begin"),
            "on_header_field": keep("name"),
            "on_header_value": keep("value"),
            "on_header_end": mark("header"),
            "on_headers_finished": mark("open"),
            "on_part_data": keep("data"),
            "on_part_end": mark("close"),
            "on_end": mark("end"),
        }


class _Header:
    """The headers of a part. `content` is that of Content-Disposition."""

    def __init__(self) -> None:
        self.content = b""
        self._name = self._value = b""

    def take(self, kind: str, piece: bytes) -> None:
        match kind:
            case "name":
                self._name += piece
            case "value":
                self._value += piece
            case "header":
                if self._name.strip().lower() == b"content-disposition":
                    self.content = self._value
                self._name = self._value = b""


def _too_large(limit: int) -> RequestError:
    return TooLarge(
        f"a file has at most {limit:,} bytes: split it, or have the operator raise limits.file"
    )
