"""A session's files, without `await`."""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import IO

from .. import files
from ..file_transfer import Progress
from ..loop_thread import LoopThread, in_caller


class Files:
    """See `kernelbroker.Files`. A file that is given to `write` is read in another thread."""

    def __init__(self, files: files.Files, thread: LoopThread) -> None:
        self._async = files
        self._thread = thread

    def read(self, path: str) -> bytes:
        return self._thread.call(self._async.read(path))

    def read_text(self, path: str, encoding: str = "utf-8") -> str:
        return self._thread.call(self._async.read_text(path, encoding))

    def stream(self, path: str, progress: Progress | None = None) -> Generator[bytes, None, None]:
        relayed = progress and in_caller(progress)
        return self._thread.iterate(self._async.stream(path, relayed))

    def write(self, path: str, data: bytes | str | IO[bytes]) -> None:
        self._thread.call(self._async.write(path, data))

    def upload(
        self,
        local: str | os.PathLike[str],
        remote: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        self._thread.call(self._async.upload(local, remote, progress and in_caller(progress)))

    def download(
        self, remote: str, local: str | os.PathLike[str], progress: Progress | None = None
    ) -> None:
        self._thread.call(self._async.download(remote, local, progress and in_caller(progress)))

    def list(self, path: str = ".", recursive: bool = False) -> files.Listing:
        return self._thread.call(self._async.list(path, recursive))

    def exists(self, path: str) -> bool:
        return self._thread.call(self._async.exists(path))

    def delete(self, path: str, recursive: bool = False) -> None:
        self._thread.call(self._async.delete(path, recursive))

    def move(self, source: str, target: str) -> None:
        self._thread.call(self._async.move(source, target))

    def mkdir(self, path: str) -> None:
        self._thread.call(self._async.mkdir(path))
