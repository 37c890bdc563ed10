"""A handle of an execution, without `await`."""

from __future__ import annotations

from collections.abc import Generator

from .. import execution_handle as asynchronous
from ..loop_thread import LoopThread
from ..protocol import events
from ..protocol.messages import ExecutionInfo
from ..results import ExecutionResult


class ExecutionHandle:
    """See `kernelbroker.ExecutionHandle`."""

    def __init__(self, handle: asynchronous.ExecutionHandle, thread: LoopThread) -> None:
        self._async = handle
        self._thread = thread

    @property
    def execution_id(self) -> str:
        return self._async.execution_id

    @property
    def session_id(self) -> str:
        return self._async.session_id

    def status(self) -> ExecutionInfo:
        return self._thread.call(self._async.status())

    def code(self) -> str:
        return self._thread.call(self._async.code())

    def events(self, after: int = 0) -> Generator[events.Event, None, None]:
        return self._thread.iterate(self._async.events(after))

    def result(self, timeout: float | None = None) -> ExecutionResult:
        return self._thread.call(self._async.result(timeout))

    def interrupt(self) -> None:
        self._thread.call(self._async.interrupt())
