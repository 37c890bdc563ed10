"""The parts of the kernel that use private names of ipykernel and IPython: errors and replies."""

from __future__ import annotations

import re
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, TypeAlias

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell
from IPython.core.error import UsageError

from ..contract import METADATA_KEY, USER_CODES
from ..error_bounds import bounded_error
from ..errors import Interrupted
from ..network_hint import explain
from . import missing, overrides, warn
from .debugger import DebuggedKernel

_OWN = f"{Path(__file__).parents[1]}/"


@overrides(ZMQInteractiveShell, "_showtraceback")
class BoundedErrorShell(ZMQInteractiveShell):
    """Shows errors of bounded size and a bounded number of frames, without the frames of this package."""

    _left_out: Counter[_Place] = Counter()
    """Frames that the traceback which is being made does not show."""
    _has_shown = False

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        _, error, _ = exc_tuple or sys.exc_info()
        if error is None:
            super().showtraceback(exc_tuple, *args, **kwargs)
            return
        if isinstance(error, KeyboardInterrupt) and self._runs_contract_code():
            # Wherever it came in the code of the contract, no frame is the user's.
            error = Interrupted()
            exc_tuple = (Interrupted, error, None)
        leave_out_own_frames(error)
        explain(error)
        self._has_shown = False
        try:
            with few_frames(error) as self._left_out:
                if _contains_group(error):
                    # IPython prints them, so that there is no error in the output.
                    lines = traceback.format_exception(type(error), error, _of_the_user(error))
                    self._showtraceback(type(error), error, "".join(lines).splitlines())
                else:
                    super().showtraceback(exc_tuple, *args, **kwargs)
        finally:
            self._left_out = Counter()
        if not self._has_shown and not isinstance(error, UsageError | SystemExit):
            # It was interrupted, and IPython only printed that. The error's `str` may take long.
            self._showtraceback(
                type(error), _INTERRUPTED, [f"{type(error).__name__}: {_INTERRUPTED}"]
            )

    def _runs_contract_code(self) -> bool:
        request: Any = self.get_parent()
        content = request.get("content") if isinstance(request, dict) else None
        return isinstance(content, dict) and content.get("code") in USER_CODES

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        self._has_shown = True
        error = bounded_error(etype.__name__, evalue, with_left_out(stb, self._left_out))
        kind: Any = SimpleNamespace(__name__=error["ename"])
        super()._showtraceback(kind, error["evalue"], error["traceback"])


_Place: TypeAlias = tuple[str, int]
"""The name of a function, and a line."""
_INTERRUPTED = "(an interrupt ended the making of the traceback)"
_FIRST, _LAST = 6, 15  # the first one is IPython's own
"""So many frames of a traceback are shown. To make one of thousands takes many seconds."""


@contextmanager
def few_frames(error: BaseException) -> Iterator[Counter[_Place]]:
    """Shorten the tracebacks of an error, and of those that led to it, within the block.

    Yields:
        how many frames are left out at each place.
    """
    cuts: list[tuple[TracebackType, TracebackType]] = []
    left_out: Counter[_Place] = Counter()
    for each in _with_causes(error):
        frames = list(_frames(each))
        if len(frames) > _FIRST + _LAST:
            # Where functions call one another in turns, they still do so.
            end, omitted = len(frames) - _LAST, _place(frames[_FIRST])
            fitting = (n for n in range(end, end + _LAST // 2) if _place(frames[n]) == omitted)
            end = next(fitting, end)
            cuts.append((frames[_FIRST - 1], frames[_FIRST]))
            frames[_FIRST - 1].tb_next = frames[end]
            left_out.update(map(_place, frames[_FIRST:end]))
    try:
        yield left_out
    finally:
        for last, following in cuts:
            last.tb_next = following


_TIMES = re.compile(r"([^\s,]+) at line (\d+) \((\d+) times\)")


def with_left_out(lines: Any, left_out: Mapping[_Place, int]) -> Any:
    """Return the lines of a traceback, which then say how many frames are left out.

    Where IPython has counted repeated frames, the count includes those that were left out before.
    """
    if not left_out:
        return lines
    rest = dict(left_out)

    def corrected(found: re.Match[str]) -> str:
        more = rest.pop((found[1], int(found[2])), 0)
        return f"{found[1]} at line {found[2]} ({int(found[3]) + more} times)"

    lines = [_TIMES.sub(corrected, line) for line in lines]
    if rest:
        lines.insert(1, f"[... {sum(rest.values())} frames in the middle are not shown ...]")
    return lines


def _place(frame: TracebackType) -> _Place:
    return frame.tb_frame.f_code.co_qualname, frame.tb_lineno


def _frames(error: BaseException) -> Iterator[TracebackType]:
    frame = error.__traceback__
    while frame is not None:
        yield frame
        frame = frame.tb_next


def leave_out_own_frames(error: BaseException) -> None:
    """Take the frames of this package out of an error's traceback, and out of those that led to it."""
    for each in _with_causes(error):
        frame = each.__traceback__
        while frame is not None:
            following = frame.tb_next
            if following is not None and _is_own(following):
                frame.tb_next = following.tb_next
            else:
                frame = following


def _with_causes(error: BaseException) -> Iterator[BaseException]:
    """An error, the errors that led to it, and those of a group."""
    todo, done = [error], set[int]()
    while todo:
        each = todo.pop()
        if id(each) in done:
            continue
        done.add(id(each))
        yield each
        todo += filter(None, (each.__cause__, each.__context__))
        if isinstance(each, BaseExceptionGroup):
            todo += each.exceptions


def _is_own(frame: TracebackType) -> bool:
    return frame.tb_frame.f_code.co_filename.startswith(_OWN)


def _of_the_user(error: BaseException) -> TracebackType | None:
    """The traceback from the cell on, without IPython's frame that runs it."""
    frame = error.__traceback__
    return frame.tb_next or frame if frame is not None else None


def _contains_group(error: BaseException | None) -> bool:
    """Whether IPython would print the traceback, as it has no form for groups of errors."""
    while error is not None:
        if isinstance(error, BaseExceptionGroup):
            return True
        error = error.__context__
    return False


_CAN_FORGET = not missing(ZMQInteractiveShell, "_last_traceback")
if not _CAN_FORGET:
    warn("an exception group is reported with the traceback of the error before it")


@overrides(IPythonKernel, "_execute_sleep", "_supports_kernel_subshells", "_publish_status")
class PromptKernel(DebuggedKernel):
    """Replies at once: ipykernel sleeps first, so that the output is likely to arrive before the reply.

    The broker waits for both. It needs no `busy` before the input of its cells, so it gets none.
    """

    _execute_sleep = 0.0

    def _publish_status(self, status: str, channel: str, parent: Any = None) -> None:
        if status == "busy":
            request = parent or self.get_parent(channel)
            silent = request.get("content", {}).get("silent", False)
            options = request.get("metadata", {}).get(METADATA_KEY)
            if isinstance(options, dict) and options.get("notebook") is not True and not silent:
                return
        super()._publish_status(status, channel, parent)

    @property
    def _supports_kernel_subshells(self) -> bool:
        return bool(self.shell_channel_thread)


class _NoThread:
    """In the place of the thread that reads requests, where there is none."""

    parent_thread = threading.main_thread()

    def __bool__(self) -> bool:
        return False


@overrides(IPKernelApp, "shell_channel_thread")
class PromptKernelApp(IPKernelApp):
    """Reads requests in the main thread.

    ipykernel reads them in another thread and hands them over, so that a subshell can run a request
    beside a cell. The broker has no subshells, and this takes a fifth of the time of a small cell.
    """

    def init_control(self, context: Any) -> None:
        super().init_control(context)
        if PromptKernel is not DebuggedKernel:
            self.shell_channel_thread = _NoThread()


@overrides(IPythonKernel, "_cancel_on_sigint")
class BoundedErrorKernel(PromptKernel):
    """Replies to a failed cell with an error of bounded size, even if the exception's `str` fails.

    Attributes:
        was_interrupted: whether an interrupt has reached the user's code that runs, or ran last.
    """

    was_interrupted = False

    @contextmanager
    def _cancel_on_sigint(self, future: Any) -> Iterator[None]:
        """ipykernel's handler in a cell that awaits."""
        with super()._cancel_on_sigint(future):
            cancel: Any = signal.getsignal(signal.SIGINT)

            def on_sigint(number: int, frame: object) -> None:
                self.was_interrupted = True
                cancel(number, frame)

            signal.signal(signal.SIGINT, on_sigint)
            yield

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._own_streams = (sys.stdout, sys.stderr)

    async def do_execute(self, *args: Any, **kwargs: Any) -> dict[str, Any]:
        shell: Any = self.shell
        # IPython runs no cell while they are None, which a cell may set.
        stdout, stderr = self._own_streams
        sys.stdout, sys.stderr = sys.stdout or stdout, sys.stderr or stderr
        if _CAN_FORGET:
            shell._last_traceback = None  # IPython does not set it for an exception group
        try:
            reply: dict[str, Any] = await super().do_execute(*args, **kwargs)
        except Exception as error:  # raised by the `str` of the cell's error
            reply = {"status": "error", "ename": type(error).__name__, "evalue": error}
            reply |= {
                "execution_count": self.execution_count,
                "user_expressions": {},
                "payload": [],
            }
            reply["traceback"] = getattr(shell, "_last_traceback", None)
        if reply.get("status") == "error":
            fields = (reply.get("ename"), reply.get("evalue"), reply.get("traceback"))
            reply |= bounded_error(*fields)
        return reply


if missing(ZMQInteractiveShell, "_last_traceback_during_displayhook"):
    warn("a cell whose value cannot be shown is reported as a success")


def failed_while_showing(shell: Any) -> bool:
    """Whether the display of the last expression's value failed, though the cell itself did not."""
    return bool(getattr(shell, "_last_traceback_during_displayhook", False))
