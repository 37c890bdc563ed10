"""Standard output and error of the kernel, on ipykernel's `OutStream`.

Text is sent 5 ms after it was written, in pieces of bounded size; a line without its end waits a little
longer, since `print` writes the end on its own. What programs write to descriptors 1
and 2 is read before the end of the cell that ran them. The stock class reads it in a thread, so that
its end can come after the end of the cell, and a character can be torn between two reads.
"""

from __future__ import annotations

import codecs
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Iterator
from fcntl import ioctl
from termios import FIONREAD
from typing import Any

from ipykernel.iostream import OutStream

from ..contract import STREAM_CHUNK_CHARS
from . import named_like, overrides

_LINE_S = 0.02
"""The time that the rest of a line has to arrive before the line is sent without it."""
_WAITING_CHARS = 4 * 1024**2
"""After so many a write waits until they are sent."""
_NONE = bytes(4)
"""The number of bytes in an empty pipe, as the system gives it."""
_PIPE_BYTES = 1024 * 1024
"""More than a pipe holds, so that one read empties it."""

_pid = os.getpid()
"""The process; asking the system for it each time takes a quarter of a `print`."""


def _forked() -> None:
    global _pid
    _pid = os.getpid()


os.register_at_fork(after_in_child=_forked)


class PromptStream(OutStream):
    """The stock stream, with a shorter delay."""

    flush_interval = 0.005
    """Seconds from a write to its being sent; 0.2 by default. The rate of a loop of prints is the same."""
    flush_timeout = 1_000_000
    """Seconds that a write may wait for the gateway, which reads nothing while there is no broker."""


@named_like(OutStream)
@overrides(
    OutStream,
    *("_fid", "_should_watch", "_is_master_process", "_flush", "_flush_pending"),
    *("_subprocess_flush_pending", "_flush_buffers", "_watch_pipe_fd"),
    *("_schedule_flush", "_io_loop", "_parent_header", "_parent_header_global", "_master_pid"),
)
class Stream(PromptStream):
    """Standard output or error."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._sending = False
        self._timer: object = None
        self._written: deque[tuple[frozenset[Any], str]] = deque()
        """Pieces of text, each with the header of its request."""
        self._waiting = 0
        """Their characters, about: threads may count at the same time."""
        self._latest: tuple[object, frozenset[Any]] = (None, frozenset())
        """The last request's header, as it is and as it stands in `_written`."""
        self._emptying = threading.RLock()  # a signal's handler may write meanwhile
        self._emptier: int | None = None
        """The thread that empties the pipe."""
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        super().__init__(*args, **kwargs)
        if self._fid is not None:
            os.set_blocking(self._fid, False)

    def write(self, string: str) -> int:
        """Add text to the next message.

        The stock method takes a lock, asks for the process's id, and makes a set of the request's header
        for each text. This one takes a fifth of its time. A forked process uses the stock method.
        """
        if _pid != self._master_pid or self.echo is not None or self.pub_thread is None:
            return super().write(string) or 0
        header = self._parent_header.get(None)
        if header is None:  # a thread without a request of its own
            header = self._parent_header_global
        latest, key = self._latest
        if header is not latest:
            key = frozenset(header.items())
            self._latest = header, key
        if not isinstance(string, str):
            raise TypeError(f"write() argument must be str, not {type(string)}")
        if string:
            if self._fid is not None and self._should_watch and self._is_behind(self._fid):
                self._empty(self._fid)  # what programs have written before comes before
            self._written.append((key, string))
            self._waiting += len(string)
            if not self._flush_pending:
                self._schedule_flush()
            if self._waiting > _WAITING_CHARS and not self._in_sending_thread():
                self.flush()
        return len(string)

    def _in_sending_thread(self) -> bool:
        return threading.current_thread() is self.pub_thread.thread

    def flush(self) -> None:
        """Hand over for sending all that was written until now, before anything else is sent.

        It is called six times a cell, mostly with nothing to send. The stock method waits for the
        sending thread each time; this one only if there is something to hand over.
        """
        if self._fid is not None and self._should_watch and self._is_master_process():
            self._empty(self._fid)
        if self._flush_pending or self._subprocess_flush_pending or self._sending:
            super().flush()

    def _schedule_flush(self) -> None:
        if not self._flush_pending:
            self._flush_pending = True
            self.pub_thread.schedule(self._flush_later)

    def _flush_later(self) -> None:
        self._timer = self._io_loop.call_later(self.flush_interval, self._flush_lines)

    def _flush_lines(self) -> None:
        """Run in the sending thread. `print` gives it a chance to run between a text and its newline."""
        if self._within_line():
            self._timer = self._io_loop.call_later(_LINE_S, self._flush)
        else:
            self._flush()

    def _within_line(self) -> bool:
        try:
            return not self._written[-1][1].endswith("\n")
        except IndexError:
            return False

    def _flush(self) -> None:
        # It is set before the stock method resets `_flush_pending`, so that one of the two is set from
        # the end of each write until its text has been handed over.
        self._sending = True
        timer, self._timer = self._timer, None
        if timer is not None:  # it would send the beginning of a later line
            self._io_loop.remove_timeout(timer)
        try:
            super()._flush()
        except Exception as error:
            # The thread would forget what else waits in it, and a cell that waits for its output.
            why = f"{type(error).__name__}: {error}".rstrip(": ")
            print(f"Some output is lost: {why}", file=sys.__stderr__)
        finally:
            self._sending = False

    def _flush_buffers(self) -> Iterator[tuple[dict[str, Any], str]]:
        for parent, text in (*self._texts(), *super()._flush_buffers()):
            for start in range(0, len(text), STREAM_CHUNK_CHARS):
                yield parent, text[start : start + STREAM_CHUNK_CHARS]

    def _texts(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Take what was written, as one text for each request."""
        if _pid != self._master_pid:
            return  # it is the parent process's
        self._waiting = 0
        pieces: dict[frozenset[Any], list[str]] = {}
        for _ in range(len(self._written)):
            key, text = self._written.popleft()
            pieces.setdefault(key, []).append(text)
        for key, texts in pieces.items():
            yield dict(key), "".join(texts)

    def _watch_pipe_fd(self) -> None:
        """Run in the stream's thread. Unlike the stock method it does not copy output to the log."""
        pipe = self._fid
        assert pipe is not None
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        while self._should_watch:
            poll.poll()
            self._empty(pipe)

    def _empty(self, pipe: int) -> None:
        if self._emptier == threading.get_ident():
            return  # `write` flushes what this thread has just read
        with self._emptying:
            self._emptier = threading.get_ident()
            try:
                if text := self._decoder.decode(self._read(pipe)):
                    self.write(text)
            finally:
                self._emptier = None

    def _is_behind(self, pipe: int) -> bool:
        """Whether programs have written what is not among our texts yet."""
        try:
            is_read = self._emptier is None and ioctl(pipe, FIONREAD, _NONE) == _NONE
        except OSError:  # user code closed it
            return False
        return not is_read and not self._in_sending_thread()  # who empties it may wait for that

    def _read(self, pipe: int) -> bytes:
        try:
            return os.read(pipe, _PIPE_BYTES)
        except BlockingIOError:  # there is nothing, or another thread was first
            return b""
        except OSError:  # user code closed it
            self._should_watch = False
            return b""
