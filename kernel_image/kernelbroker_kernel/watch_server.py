"""Changes of a directory, as the system reports them (inotify), over HTTP; for the broker only."""

from __future__ import annotations

import asyncio
import os
import re
import select
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from tornado.iostream import StreamClosedError

from . import environment, workspace
from .contract import FRAMES_ALIVE_S, WATCH_PATH
from .errors import Refused, refusing
from .file_server import Handler
from .frames import ALIVE, frame
from .inotify import (
    ATTRIB,
    CREATE,
    DELETE,
    DELETE_SELF,
    IGNORED,
    ISDIR,
    MODIFY,
    MOVE_SELF,
    MOVED_FROM,
    MOVED_TO,
    Inotify,
)

MAX_DIRECTORIES = 1000
"""Of one recursive watch; those beyond it are not watched."""
_ALL = MODIFY | ATTRIB | MOVED_FROM | MOVED_TO | CREATE | DELETE | DELETE_SELF | MOVE_SELF
_TYPES = {
    CREATE: "create",
    MOVED_TO: "create",
    MODIFY: "write",
    DELETE: "remove",
    MOVED_FROM: "rename",
    ATTRIB: "chmod",
}

_MARKED_READS = 16
"""At most so many before a mark, of 64 KiB: code may write without end."""
_NAMELESS = re.compile("#[0-9]+")
"""The system's names of files that have none, such as uploads."""


class Watch(Handler):
    """GET ?recursive=true&system=true: the changes below a directory, until the broker hangs up.

    POST ?mark=TEXT: a mark in each of these streams, behind the changes until now.
    """

    open: ClassVar[set[Watch]] = set()
    """Those that stream changes."""
    notify: Notify
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

    async def post(self, _: str) -> None:
        for watch in self.open:
            for _round in range(_MARKED_READS):
                if not watch.notify.has_reports():
                    break
                watch.write(b"".join(frame(b"c", change) for change in watch.notify.read()))
            watch.write(frame(b"m", {"mark": self.argument("mark")}))
            watch.flush()
        self.reply({})

    async def send(self, notify: Notify) -> None:
        self.reading = ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(notify.descriptor, ready.set)
        self.notify = notify
        self.open.add(self)
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
            self.open.discard(self)
            loop.remove_reader(notify.descriptor)

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.is_closed = True
        if self.reading is not None:
            self.reading.set()


class Notify:
    """The watches of one directory and, if asked, of those below it."""

    def __init__(self, root: Path) -> None:
        try:
            self._inotify = Inotify()
        except OSError as error:
            raise Refused(
                "conflict", "the sandbox has too many watches; stop one of them"
            ) from error
        self.descriptor = self._inotify.descriptor
        self._root = root
        self._folders: dict[int, str] = {}
        self._is_recursive = False
        self._uploads: dict[int, str] = {}
        """The temporary name of an upload that is being renamed, by the number of the rename."""
        self._found: set[str] = set()
        """In new directories, whose creation has been told and may be reported once more."""

    def add(self, folder: str, *, recursive: bool) -> None:
        """Watch a directory, by its path below the root. Raises OSError."""
        self._is_recursive = recursive
        self._folders[self._inotify.add(self._root / folder, _ALL)] = folder
        if recursive:
            for _ in self._add_below(folder):
                pass

    def _add_below(self, folder: str) -> Iterator[tuple[str, bool]]:
        """Watch the directories below one. Yields each entry's path, and whether it is a file."""
        with suppress(OSError), os.scandir(self._root / folder) as entries:
            for entry in entries:
                path = f"{folder}/{entry.name}".lstrip("/")
                yield path, entry.is_file(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    yield from self._add_new(path)

    def _add_new(self, folder: str) -> Iterator[tuple[str, bool]]:
        if len(self._folders) < MAX_DIRECTORIES:
            with suppress(OSError):  # removed meanwhile
                self._folders[self._inotify.add(self._root / folder, _ALL)] = folder
                yield from self._add_below(folder)

    def read(self) -> Iterator[dict[str, str]]:
        """The changes that have been reported."""
        told, self._found = self._found, set()
        for number, mask, cookie, name in self._inotify.read():
            folder = self._folders.get(number, "")
            if mask & IGNORED:
                self._folders.pop(number, None)
                continue
            path = f"{folder}/{name}".strip("/")
            if _NAMELESS.fullmatch(name) or name.startswith(workspace.UPLOAD_PREFIX):
                if mask & MOVED_FROM:
                    self._uploads = {cookie: name}
                continue
            if mask & MOVED_TO and (upload := self._uploads.pop(cookie, None)) is not None:
                if upload.endswith(workspace.REPLACES_SUFFIX):
                    yield {"path": path, "type": "write"}
                elif path not in told:
                    yield from _new_file(path)
                continue
            if path in told and mask & (CREATE | MOVED_TO):
                told.discard(path)
                continue
            for flag, kind in _TYPES.items():
                # A watched directory reports its own end to the watch of its parent as well.
                if mask & flag and (name or flag == ATTRIB):
                    yield {"path": path, "type": kind}
            if self._is_recursive and mask & ISDIR and mask & (CREATE | MOVED_TO):
                # What has been made in it before it is watched is not reported.
                for below, is_file in self._add_new(path):
                    self._found.add(below)
                    if is_file:
                        yield from _new_file(below)
                    else:
                        yield {"path": below, "type": "create"}

    def has_reports(self) -> bool:
        """Whether `read` has something to read."""
        return bool(select.select([self.descriptor], [], [], 0)[0])

    def close(self) -> None:
        self._inotify.close()


def _new_file(path: str) -> Iterator[dict[str, str]]:
    """The changes by which a complete file is told, in the order of E2B's daemon."""
    for kind in ("create", "chmod", "write"):
        yield {"path": path, "type": kind}


ROUTES = [(f"{WATCH_PATH}/(.*)", Watch)]
