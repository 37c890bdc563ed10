"""Assesses code in separate processes, so that hostile code can at most end such a process.

The processes are started when they are first needed, kept, and replaced when they have ended. Tenants take
turns, and each has one assessment at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker.protocol.errors import TooManyRequests, Unavailable
from kernelbroker.protocol.findings import Assessment, Finding, RuleSet
from kernelbroker.risk.report import report

from ..backends.child import Child
from ..fair_queue import FairQueue
from .assessor_process import Answer, Request

logger = logging.getLogger(__name__)

_PROCESSES = 2
_MAX_WAITING = 32
"""Assessments of one tenant that wait."""
_ANSWER_BYTES = 1024 * 1024
"""Of an answer: ten times the size of the largest assessment."""
_TIMEOUT_S = 30.0
"""For one answer. Far more than the processor time of an assessment, since the machine may be busy."""
_ARGV = [sys.executable, "-I", "-m", f"{__package__}.assessor_process"]


@dataclass(eq=False, slots=True)
class _Turn:
    """An assessment that waits."""

    tenant: str
    came: asyncio.Future[None]


class Assessor:
    """A few processes, shared by all tenants.

    Args:
        rules: the rule set for code.
        dangerous_patterns: further regular expressions, which ignore case and are critical.
    """

    def __init__(self, rules: RuleSet = "agent", dangerous_patterns: tuple[str, ...] = ()) -> None:
        self._rules = rules
        self._dangerous_patterns = dangerous_patterns
        self._free = _PROCESSES
        self._queue: FairQueue[_Turn] = FairQueue()
        self._waiting: Counter[str] = Counter()
        self._busy: set[str] = set()
        """The tenants that have an assessment running."""
        self._idle: list[_Process] = []
        self._all: set[_Process] = set()
        self._stopping = False

    async def assess(
        self,
        code: str,
        language: str,
        tenant: str = "",
        params: Mapping[str, Any] | None = None,
    ) -> Assessment:
        """Assess code when it is the tenant's turn. A cancelled assessment ends at once.

        Returns:
            What `kernelbroker.risk.assess` returns; `high` for code that exceeds a process's limits.

        Raises:
            TooManyRequests: too many assessments of the tenant are waiting.
            Unavailable: a package for this language is missing, or no process could be started.
        """
        request = Request(code, language, dict(params or {}), self._rules, self._dangerous_patterns)
        async with self._slot(tenant):
            answer = await self._ask(request)
        if answer.assessment is None:
            raise Unavailable(f"{answer.missing} where the broker runs")
        return answer.assessment

    @contextlib.asynccontextmanager
    async def _slot(self, tenant: str) -> AsyncIterator[None]:
        """Wait for the tenant's turn to use a process."""
        if self._waiting[tenant] >= _MAX_WAITING:
            raise TooManyRequests(
                f"{_MAX_WAITING} assessments are waiting; try again when some have ended",
                retry_after=1,
            )
        turn = _Turn(tenant, asyncio.get_running_loop().create_future())
        self._queue.add(turn, tenant)
        self._waiting[tenant] += 1
        self._assign()
        try:
            # Unlike `await turn.came`, this leaves the future alone when the caller is cancelled.
            if not turn.came.done():
                await asyncio.wait([turn.came])
        except asyncio.CancelledError:
            if turn.came.done():  # in the same turn of the event loop
                self._release(tenant)
            else:
                self._queue.remove(turn)
            raise
        finally:
            self._waiting -= Counter([tenant])  # this also drops the counts that are zero
        try:
            yield
        finally:
            self._release(tenant)

    def _assign(self) -> None:
        """Give the free processes to waiting assessments, one tenant after the other."""
        while self._free and (turn := self._queue.take(self._may_run)) is not None:
            self._busy.add(turn.tenant)
            self._free -= 1
            turn.came.set_result(None)

    def _may_run(self, tenant: str) -> bool:
        return tenant not in self._busy

    def _release(self, tenant: str) -> None:
        self._free += 1
        self._busy.discard(tenant)
        self._assign()

    async def _ask(self, request: Request) -> Answer:
        process = await self._an_idle_one() or await self._start()
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                answer = await process.ask(request)
        except (OSError, EOFError, ValueError, TimeoutError):
            status = await self._end(process)
            if self._stopping:
                raise _stopping() from None
            logger.warning(
                "%s exceeded the limits of an assessment (status %d)", request.language, status
            )
            return Answer(assessment=_exceeded(request.language))
        except BaseException:  # the caller was cancelled
            await self._end(process)
            raise
        self._idle.append(process)
        return answer

    async def stop(self) -> None:
        """End all processes, and start no more."""
        self._stopping = True
        self._idle.clear()
        await asyncio.gather(*(self._end(process) for process in list(self._all)))

    async def _an_idle_one(self) -> _Process | None:
        while self._idle:
            if not (process := self._idle.pop()).has_ended:
                return process
            await self._end(process)
        return None

    async def _start(self) -> _Process:
        if self._stopping:
            raise _stopping()
        try:
            process = await _Process.start()
        except OSError as exc:
            raise Unavailable(
                f"no process for the assessment could be started ({exc.strerror}); try again",
                retry_after=1,
            ) from exc
        if self._stopping:  # it was set during the start
            await process.end()
            raise _stopping()
        self._all.add(process)
        return process

    async def _end(self, process: _Process) -> int:
        self._all.discard(process)
        return await process.end()


class _Process:
    def __init__(
        self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Process:
        ours, theirs = socket.socketpair()
        child = None
        try:
            with theirs:
                # The broker's environment holds secrets.
                child = Child(_ARGV, env={}, stdin=theirs.fileno())
            reader, writer = await asyncio.open_connection(sock=ours, limit=_ANSWER_BYTES)
        except BaseException:
            ours.close()
            if child is not None:
                child.kill()
                await child.wait()
            raise
        return cls(child, reader, writer)

    @property
    def has_ended(self) -> bool:
        return self._child.exited.done()

    async def ask(self, request: Request) -> Answer:
        """Send a request and wait for its answer.

        Raises:
            OSError, EOFError, ValueError: the process has ended, or has sent something else.
        """
        self._writer.write(msgspec.json.encode(request) + b"\n")
        await self._writer.drain()
        if not (line := await self._reader.readline()):
            raise EOFError
        return decode_json(line, Answer)

    async def end(self) -> int:
        """End the process if it has not ended. Returns its status; may be called twice."""
        self._child.kill()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        return await self._child.wait()


def _stopping() -> Unavailable:
    return Unavailable("the broker is shutting down", retry_after=10)


def _exceeded(language: str) -> Assessment:
    reason = "takes more time or memory to assess than code written in good faith"
    finding = Finding(rule="size", level="high", line=1, column=1, reason=reason)
    return report(language, "high", [finding])
