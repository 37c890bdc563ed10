"""Standard output and error of the cells: what Python writes, and what programs that a cell runs write.

Such programs write into a pipe that stands in the place of file descriptors 1 and 2. The stock class
leaves it to a thread, so that the end of what they wrote could come after the end of the cell, and a
character could be torn where a read ended.
"""

from __future__ import annotations

import codecs
import os
import select
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from ipykernel.iostream import OutStream

from .contract import STREAM_CHUNK_CHARS

_PIPE_BYTES = 1024 * 1024
"""More than a pipe holds, so that one read empties it."""


@contextmanager
def outputs() -> Iterator[list[int | None]]:
    """Standard output and error for a program: it writes where the kernel does, but has ends of its own.

    Inherited ones share their flags with the kernel's: Node.js makes them non-blocking for good, and
    whoever writes to them later loses what does not fit into the pipe at once.
    """
    ends: list[int | None] = [None, None]
    with ExitStack() as opened:
        for place, number in enumerate((1, 2)):
            with suppress(OSError):  # the user has closed it
                if stat.S_ISFIFO(os.fstat(number).st_mode):
                    end = os.open(f"/proc/self/fd/{number}", os.O_WRONLY | os.O_CLOEXEC)
                    opened.callback(os.close, end)
                    ends[place] = end
        yield ends


def make_blocking() -> None:
    """Undo what a program has done to the pipes that a cell let it inherit."""
    for number in (1, 2):
        with suppress(OSError):
            os.set_blocking(number, True)


class Stream(OutStream):
    flush_interval = 0.005
    """Seconds from a write to its being sent; 0.2 by default. The rate of a loop of prints is the same."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sending = False
        self._emptying = threading.Lock()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        super().__init__(*args, **kwargs)
        if self._fid is not None:
            os.set_blocking(self._fid, False)

    def flush(self) -> None:
        """Hand over for sending all that was written until now, before anything else is sent.

        This is called six times a cell, mostly for nothing. The stock method waits for the sending
        thread each time; here only if there is something to hand over.
        """
        if self._fid is not None and self._should_watch and self._is_master_process():
            self._empty(self._fid)
        if self._flush_pending or self._subprocess_flush_pending or self._sending:
            super().flush()

    def _flush(self) -> None:
        # It is set before the stock method takes back `_flush_pending`, so that one of them is set
        # from the end of each write until its text has been handed over.
        self._sending = True
        try:
            super()._flush()
        finally:
            self._sending = False

    def _flush_buffers(self) -> Iterator[tuple[dict[str, Any], str]]:
        for parent, text in super()._flush_buffers():
            for start in range(0, len(text), STREAM_CHUNK_CHARS):
                yield parent, text[start : start + STREAM_CHUNK_CHARS]

    def _watch_pipe_fd(self) -> None:
        """What the stream's thread does. Unlike the stock one it does not copy output to the log."""
        pipe = self._fid
        assert pipe is not None
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while self._should_watch:
            poll.poll()
            self._empty(pipe)

    def _empty(self, pipe: int) -> None:
        with self._emptying:
            try:
                data = os.read(pipe, _PIPE_BYTES)
            except BlockingIOError:
                return  # there is nothing, or another thread was first
            except OSError:  # user code closed it
                self._should_watch = False
                return
            if text := self._decoder.decode(data):
                self.write(text)
