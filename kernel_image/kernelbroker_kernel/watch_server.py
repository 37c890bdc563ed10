"""Changes of a directory, as the system reports them (inotify), over HTTP; for the broker only."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from struct import Struct

from tornado.iostream import StreamClosedError

from . import environment, workspace
from .contract import FRAMES_ALIVE_S, WATCH_PATH
from .errors import Refused, refusing
from .file_server import Handler
from .frames import ALIVE, frame

MAX_DIRECTORIES = 1000
"""Of one recursive watch; those beyond it are not watched."""
_READ_BYTES = 64 * 1024
_EVENT = Struct("iIII")
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO = 0x2, 0x4, 0x40, 0x80
_CREATE, _DELETE, _DELETE_SELF, _MOVE_SELF = 0x100, 0x200, 0x400, 0x800
_ONLYDIR, _ISDIR, _IGNORED = 0x01000000, 0x40000000, 0x8000
_ALL = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
_TYPES = {
    _CREATE: "create",
    _MOVED_TO: "create",
    _MODIFY: "write",
    _DELETE: "remove",
    _MOVED_FROM: "rename",
    _ATTRIB: "chmod",
}

_NAMELESS = re.compile("#[0-9]+")
"""The system's names of files that have none, such as uploads."""

_libc = ctypes.CDLL(None, use_errno=True)


class Watch(Handler):
    """GET ?recursive=true&system=true: the changes below a directory, until the broker hangs up."""

    reading: asyncio.Event | None = None
    is_closed = False

    async def get(self, path: str) -> None:
        names = workspace.components(path, system=self.argument("system") == "true")
        with refusing(path):
            notify = Notify(Path(environment.WORKSPACE, *names))
            try:
                notify.add("", recursive=self.argument("recursive") == "true")
            except BaseException:
                notify.close()
                raise
        try:
            self.write(frame(b"w", {}))
            await self.flush()
            await self.send(notify)
        except StreamClosedError:
            pass
        finally:
            notify.close()

    async def send(self, notify: Notify) -> None:
        self.reading = ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(notify.descriptor, ready.set)
        try:
            while not self.is_closed:
                ready.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(FRAMES_ALIVE_S):
                        await ready.wait()
                changes = [frame(b"c", change) for change in notify.read()]
                self.write(b"".join(changes) or ALIVE)
                await self.flush()
        finally:
            loop.remove_reader(notify.descriptor)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.is_closed = True
        if self.reading is not None:
            self.reading.set()


class Notify:
    """The watches of one directory and, if asked, of those below it."""

    def __init__(self, root: Path) -> None:
        self.descriptor = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.descriptor < 0:
            raise Refused("conflict", "the sandbox has too many watches; stop one of them")
        self._root = root
        self._folders: dict[int, str] = {}
        self._is_recursive = False
        self._uploads: dict[int, str] = {}
        """The temporary name of an upload that is being renamed, by the number of the rename."""

    def add(self, folder: str, *, recursive: bool) -> None:
        """Watch a directory, by its path below the root. Raises OSError."""
        self._is_recursive = recursive
        path = self._root / folder
        number = _libc.inotify_add_watch(self.descriptor, os.fsencode(path), _ALL | _ONLYDIR)
        if number < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        self._folders[number] = folder
        if recursive:
            with suppress(OSError), os.scandir(path) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        self._add_below(f"{folder}/{entry.name}".lstrip("/"))

    def _add_below(self, folder: str) -> None:
        if len(self._folders) < MAX_DIRECTORIES:
            with suppress(OSError):  # removed meanwhile
                self.add(folder, recursive=True)

    def read(self) -> Iterator[dict[str, str]]:
        """The changes that have been reported."""
        try:
            data = os.read(self.descriptor, _READ_BYTES)
        except OSError as error:
            if error.errno == errno.EAGAIN:
                return
            raise
        offset = 0
        while offset < len(data):
            number, mask, cookie, size = _EVENT.unpack_from(data, offset)
            name = os.fsdecode(data[offset + _EVENT.size :][:size].rstrip(b"\0"))
            offset += _EVENT.size + size
            folder = self._folders.get(number, "")
            if mask & _IGNORED:
                self._folders.pop(number, None)
                continue
            path = f"{folder}/{name}".strip("/")
            if self._is_recursive and mask & _ISDIR and mask & (_CREATE | _MOVED_TO):
                self._add_below(path)
            if _NAMELESS.fullmatch(name) or name.startswith(workspace.UPLOAD_PREFIX):
                if mask & _MOVED_FROM:
                    self._uploads = {cookie: name}
                continue
            if mask & _MOVED_TO and (upload := self._uploads.pop(cookie, None)) is not None:
                if not upload.endswith(workspace.REPLACES_SUFFIX):
                    yield {"path": path, "type": "create"}
                yield {"path": path, "type": "write"}
                continue
            for flag, kind in _TYPES.items():
                # A watched directory reports its own end to the watch of its parent as well.
                if mask & flag and (name or flag == _ATTRIB):
                    yield {"path": path, "type": kind}

    def close(self) -> None:
        os.close(self.descriptor)


ROUTES = [(f"{WATCH_PATH}/(.*)", Watch)]
