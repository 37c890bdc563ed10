"""What clients do while things break, and what they must have seen in the end.

Each cell prints numbered lines. A line is lost if it was not seen although a later one was, or although
the cell succeeded. It is doubled if it was seen twice. The same holds for the events by their `seq`. A
cell that did not succeed has a result that says why, and has printed the lines up to some number.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import zip_longest

import kernelbroker
from kernelbroker import events

EXPLAINED = {"sandbox_lost", "kernel_died", "rejected", "interrupted", "out_of_memory"}
"""Causes of results that say what a fault has done to a cell."""
_TIMEOUT_S = 200.0
"""Of a cell. It takes half a second; a slow machine is no fault."""
RAN = "ran"
"""The file in the workspace to which each cell appends its name when it begins."""


@dataclass
class Cell:
    """One cell, and what its client has seen.

    Attributes:
        accepted: the broker has said that it has it.
        refused: why it never ran, as far as the client knows.
    """

    name: str
    lines: int
    code: str
    execution_id: str
    session_id: str = ""
    seen: list[events.Event] = field(default_factory=list)
    accepted: bool = False
    refused: str | None = None

    @property
    def result(self) -> events.Result | None:
        last = self.seen[-1] if self.seen else None
        return last if isinstance(last, events.Result) else None

    @property
    def numbers(self) -> list[int]:
        text = "".join(e.content for e in self.seen if isinstance(e, events.Stdout))
        found = [line.split() for line in text.splitlines() if line.startswith(self.name)]
        return [int(line[1]) for line in found]


def make_cell(rng: random.Random, name: str) -> Cell:
    lines = rng.choice([3, 40, 400])
    padding = "x" * rng.choice([0, 0, 100])
    pause = rng.choice([0.0, 0.0, 0.4 / lines])
    code = f"""
import time
with open({RAN!r}, "a") as file:
    file.write("{name}\\n")
for number in range({lines}):
    print("{name}", number, "{padding}", flush={rng.random() < 0.5})
    time.sleep({pause})
"""
    return Cell(name, lines, code, f"{name}-{rng.randrange(10**9)}")


class Worker:
    """A client that runs one cell after the other, in one session as long as it lives.

    Args:
        connect: returns a new client of the broker, behind the proxy.
    """

    def __init__(self, number: int, connect, rng: random.Random, told: Counter[str]) -> None:
        self.workspace = f"w{number}"
        self.cells: list[Cell] = []
        self.told = told
        self._number = number
        self._connect = connect
        self._rng = rng
        self._sessions = 0
        self._broker: kernelbroker.Broker = connect()
        self._session: kernelbroker.Session | None = None

    async def run(self, count: int) -> None:
        for _ in range(count):
            cell = make_cell(self._rng, f"c{self._number}x{len(self.cells)}")
            self.cells.append(cell)
            way = self._rng.choice([self._stream, self._submit, self._submit, self._leave])
            try:
                await way(cell)
            except kernelbroker.KernelBrokerError as exc:
                self.told[type(exc).__name__] += 1
                if not cell.execution_id:
                    cell.refused = f"{type(exc).__name__}: {exc}"
                await self.drop()
                if cell.execution_id and not cell.seen:
                    await self._ask_again(cell, str(exc))

    async def drop(self) -> None:
        """Forget the session; the next cell opens another one."""
        broker, self._session = self._broker, None
        self._broker = self._connect()
        await broker.close()

    async def _opened(self) -> kernelbroker.Session:
        if self._session is None:
            if not self._sessions or self._rng.random() < 0.7:  # otherwise return to the last one
                self._sessions += 1
            try:
                self._session = await self._open_session(self._sessions)
            except kernelbroker.Conflict:  # the last one outlived its broker, and has the workspace
                self._sessions -= 1
                self._session = await self._open_session(self._sessions)
        return self._session

    async def _open_session(self, number: int) -> kernelbroker.Session:
        session = self._broker.session(f"s{self._number}-{number}", workspace=self.workspace)
        await session.open()
        return session

    async def _stream(self, cell: Cell) -> None:
        """Over the session's WebSocket. If that is lost for good, go on by the execution's id."""
        session = await self._opened()
        cell.session_id, cell.execution_id = session.session_id, ""
        try:
            await self._take(cell, session.stream(cell.code, timeout=_TIMEOUT_S))
        except (
            kernelbroker.ConnectionLost,
            kernelbroker.SessionGone,
            kernelbroker.Unavailable,
        ) as exc:
            if not cell.execution_id:
                cell.refused = str(exc)
                raise
            await self.drop()
            await self._attach(cell)

    async def _submit(self, cell: Cell) -> None:
        """By a handle, from the client that submitted it."""
        session = await self._opened()
        cell.session_id = session.session_id
        handle = await session.submit(cell.code, execution_id=cell.execution_id, timeout=_TIMEOUT_S)
        cell.accepted = True
        await self._take(cell, handle.events())

    async def _leave(self, cell: Cell) -> None:
        """By another client than the one that submitted it."""
        session = await self._opened()
        cell.session_id = session.session_id
        await session.submit(cell.code, execution_id=cell.execution_id, timeout=_TIMEOUT_S)
        cell.accepted = True
        await self._attach(cell)

    async def _attach(self, cell: Cell) -> None:
        async with self._connect() as other:
            handle = await other.attach_execution(cell.execution_id)
            last = cell.seen[-1].seq if cell.seen else 0
            await self._take(cell, handle.events(after=last))

    async def _ask_again(self, cell: Cell, reason: str) -> None:
        """The answer to the submission was an error; the broker may have it nevertheless."""
        try:
            await self._attach(cell)
        except kernelbroker.NotFound:
            cell.refused = reason

    async def _take(self, cell: Cell, stream: AsyncGenerator[events.Event, None]) -> None:
        async with aclosing(stream):
            async for event in stream:
                cell.execution_id = event.execution_id
                cell.seen.append(event)


def first_difference(seen: list[events.Event], stored: list[events.Event]) -> str:
    for number, (one, other) in enumerate(zip_longest(seen, stored)):
        if one != other:
            ends = f"; the last are {seen[-1]!r} and {stored[-1]!r}" if stored else ""
            return f"event {number} is {one!r}, and {other!r}{ends}"
    return "nothing"


@dataclass
class Verdict:
    """
    Attributes:
        lost, doubled: events and lines.
        faults: what is wrong, in words.
    """

    events: int = 0
    lost: int = 0
    doubled: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, cell: Cell, again: list[events.Event]) -> None:
        """Judge a cell.

        Args:
            again: its events as the broker has them afterwards.
        """
        self.events += len(cell.seen)
        before = self.lost, self.doubled
        self._count([event.seq for event in cell.seen], 1)
        self._count(cell.numbers, 0)
        result = cell.result
        if result is None and (cell.accepted or cell.refused is None):
            self.lost += 1
            self.wrong.append(f"{cell.execution_id} has no result: {cell.refused}")
        elif result is None:
            self.outcomes["refused"] += 1
        elif result.success:
            self.outcomes["success"] += 1
            self.lost += cell.lines - len(set(cell.numbers))
        else:
            cause = result.error_detail.cause if result.error_detail else "none"
            self.outcomes[cause] += 1
            if cause not in EXPLAINED:
                self.wrong.append(f"{cell.execution_id} ended by {cause}: {result.error}")
        if result is not None and again != cell.seen:
            self.wrong.append(f"{cell.execution_id} is stored otherwise than it was seen: ")
            self.wrong[-1] += first_difference(cell.seen, again)
        if (self.lost, self.doubled) != before:
            seqs = [event.seq for event in cell.seen]
            self.wrong.append(f"{cell.execution_id}: {seqs=}, numbers={cell.numbers}, {result=}")

    def ran(self, names: list[str]) -> None:
        """Judge how often cells ran, by what they wrote."""
        for name, count in Counter(names).items():
            if count > 1:
                self.doubled += 1
                self.wrong.append(f"{name} ran {count} times")

    def _count(self, numbers: list[int], first: int) -> None:
        self.doubled += len(numbers) - len(set(numbers))
        if numbers:
            self.lost += max(numbers) + 1 - first - len(set(numbers))
