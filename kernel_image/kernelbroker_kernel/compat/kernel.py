"""The parts of the kernel that use private names of ipykernel and IPython: errors and replies."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

from ipykernel.ipkernel import IPythonKernel
from ipykernel.kernelapp import IPKernelApp
from ipykernel.zmqshell import ZMQInteractiveShell

from ..contract import METADATA_KEY
from ..error_bounds import bounded_error
from . import missing, overrides, warn
from .debugger import DebuggedKernel


@overrides(ZMQInteractiveShell, "_showtraceback")
class BoundedErrorShell(ZMQInteractiveShell):
    """Shows errors of bounded size."""

    def _showtraceback(self, etype: Any, evalue: Any, stb: Any) -> None:
        error = bounded_error(etype.__name__, evalue, stb)
        kind: Any = SimpleNamespace(__name__=error["ename"])
        super()._showtraceback(kind, error["evalue"], error["traceback"])


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


class BoundedErrorKernel(PromptKernel):
    """Replies to a failed cell with an error of bounded size, even if the exception's `str` fails."""

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
