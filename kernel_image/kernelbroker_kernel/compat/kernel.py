"""The parts of the kernel that use private names of ipykernel and IPython: errors and replies."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell

from ..contract import METADATA_KEY
from ..error_bounds import bounded_error
from . import missing, overrides, warn
from .debugger import DebuggedKernel

_OWN = f"{Path(__file__).parents[1]}/"


@overrides(ZMQInteractiveShell, "_showtraceback")
class BoundedErrorShell(ZMQInteractiveShell):
    """Shows errors of bounded size, without the frames of this package."""

    def showtraceback(self, exc_tuple: Any = None, *args: Any, **kwargs: Any) -> None:
        _, error, _ = exc_tuple or sys.exc_info()
        if error is not None:
            leave_out_own_frames(error)
        if error is not None and _contains_group(error):
            # IPython prints them, so that there is no error in the output.
            lines = traceback.format_exception(type(error), error, _of_the_user(error))
            self._showtraceback(type(error), error, "".join(lines).splitlines())
        else:
            super().showtraceback(exc_tuple, *args, **kwargs)

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        error = bounded_error(etype.__name__, evalue, stb)
        kind: Any = SimpleNamespace(__name__=error["ename"])
        super()._showtraceback(kind, error["evalue"], error["traceback"])


def leave_out_own_frames(error: BaseException) -> None:
    """Take the frames of this package out of an error's traceback, and out of those that led to it."""
    todo, done = [error], set[int]()
    while todo:
        each = todo.pop()
        if id(each) in done:
            continue
        done.add(id(each))
        frame = each.__traceback__
        while frame is not None:
            following = frame.tb_next
            if following is not None and _is_own(following):
                frame.tb_next = following.tb_next
            else:
                frame = following
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
