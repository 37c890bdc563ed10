"""Judging code in processes of their own, which code that was made for it can do no more than end.

The processes are started when they are first needed, kept, and replaced when they have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys

import msgspec
from kernelbroker.protocol.errors import Unavailable
from kernelbroker.protocol.findings import Assessment, Finding, Language

from ..backends.child import Child
from .judge_process import Answer, Request

logger = logging.getLogger(__name__)

_PROCESSES = 2
_ANSWER_BYTES = 1024 * 1024
"""The most that an assessment takes is a tenth of it."""
_PATIENCE_S = 30.0
"""Far more than the process gives itself; it may share its processor with much else."""
_ARGV = [sys.executable, "-I", "-m", f"{__package__}.judge_process"]


class Judges:
    """A few processes, for all tenants."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(_PROCESSES)
        self._idle: list[_Judge] = []
        self._all: set[_Judge] = set()
        self._stopping = False

    async def assess(self, code: str, language: Language) -> Assessment:
        """As `kernelbroker.risk.assess`; code that cannot be judged within bounds is judged `high`.

        Raises:
            Unavailable: code of this language, or any at present, cannot be judged here.
        """
        async with self._free:
            judge = await self._an_idle_one() or await self._start()
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    answer = await judge.ask(Request(code, language))
            except (OSError, EOFError, ValueError, TimeoutError):
                status = await self._end(judge)
                if self._stopping:
                    raise _stopping() from None
                logger.warning("%s was too much for its judge (status %d)", language, status)
                return _overwhelmed(language)
            except BaseException:  # nobody waits for it any more
                await self._end(judge)
                raise
            self._idle.append(judge)
        if answer.assessment is None:
            raise Unavailable(f"{answer.missing} where the broker runs")
        return answer.assessment

    async def stop(self) -> None:
        """End all, and begin no more."""
        self._stopping = True
        self._idle.clear()
        await asyncio.gather(*(self._end(judge) for judge in list(self._all)))

    async def _an_idle_one(self) -> _Judge | None:
        while self._idle:
            if not (judge := self._idle.pop()).has_ended:
                return judge
            await self._end(judge)
        return None

    async def _start(self) -> _Judge:
        if self._stopping:
            raise _stopping()
        try:
            judge = await _Judge.start()
        except OSError as exc:
            raise Unavailable(f"no process to judge it in: {exc.strerror}", retry_after=1) from exc
        if self._stopping:  # meanwhile
            await judge.end()
            raise _stopping()
        self._all.add(judge)
        return judge

    async def _end(self, judge: _Judge) -> int:
        self._all.discard(judge)
        return await judge.end()


class _Judge:
    def __init__(
        self, child: Child, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._child = child
        self._reader = reader
        self._writer = writer

    @classmethod
    async def start(cls) -> _Judge:
        ours, theirs = socket.socketpair()
        child = None
        try:
            with theirs:
                # Without the broker's environment, in which there are secrets.
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
        """Raises OSError, EOFError, ValueError where it has ended, or answers as none of ours does."""
        self._writer.write(msgspec.json.encode(request) + b"\n")
        await self._writer.drain()
        if not (line := await self._reader.readline()):
            raise EOFError
        return msgspec.json.decode(line, type=Answer)

    async def end(self) -> int:
        """End it, if it has not ended by itself; twice does no harm. Returns its status."""
        self._child.kill()
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()
        return await self._child.wait()


def _stopping() -> Unavailable:
    return Unavailable("the broker is shutting down", retry_after=10)


def _overwhelmed(language: Language) -> Assessment:
    reason = "could not be judged: it takes more time or memory to read than any code that is meant"
    finding = Finding(rule="depth", level="high", line=1, column=1, reason=reason)
    return Assessment(language=language, level="high", findings=[finding])
