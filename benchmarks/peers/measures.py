"""The table of measurements, and how a worker takes them. Only the standard library.

Every measurement checks the output; an output that is not the expected one is a failure, not a time.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import monotonic, perf_counter
from typing import Any

from peers.adapter import Adapter, Outcome, call
from peers.memory import pss_mib

LINES, WIDTH = 100_000, 100
SETUP_FRAME = "import numpy, pandas; frame = pandas.DataFrame(numpy.ones((1_000_000, 4)))\n"
SETUP_PLOT = "import matplotlib.pyplot as plt\n"
HEAVY = "import pandas, matplotlib.pyplot; print('ready')"
COLD = "import pandas; print(pandas.Series([40, 2]).sum())"
FLOOD = f"for _ in range({LINES}): print('x' * {WIDTH - 1})"
MEMORY_SESSIONS = 3
THROUGHPUT_S = 3.0
WARM_UP_CELLS = 20


@dataclass(frozen=True)
class Measure:
    """One row of the results.

    Attributes:
        key: its name in the results; `command` takes it (one command may take several).
        unit: ms (from seconds), MiB, or 1/s (more is better).
        count: times a round.
    """

    key: str
    title: str
    unit: str
    command: str
    count: int = 1


MEASURES = (
    Measure("one", "round trip of `1`", "ms", "one", 10),
    Measure("print", "round trip of `print`", "ms", "print", 10),
    Measure("report", "a frame of 1M rows, shown", "ms", "report", 3),
    Measure("plot", "a plot", "ms", "plot", 3),
    Measure("first_byte", "first unflushed print seen", "ms", "first_byte", 3),
    Measure("stream", "100,000 lines", "ms", "stream"),
    Measure("open", "open a session", "ms", "open"),
    Measure("first_line", "open it and print a line", "ms", "open"),
    Measure("cold", "the same, nothing warm, pandas imported", "ms", "cold"),
    Measure("restart", "restart and print a line", "ms", "restart"),
    Measure("memory", "memory per session with pandas and pyplot", "MiB", "memory"),
)

CELLS = {
    "one": "1",
    "print": "print('hello')",
    "report": "frame",
    "plot": "plt.plot([1, 4, 9]); plt.show()",
    "first_byte": "import time; print('now'); time.sleep(0.3)",
    "stream": FLOOD,
}
SETUPS = {"report": SETUP_FRAME, "plot": SETUP_PLOT}


class WrongOutputError(Exception):
    """A cell failed or its output is not the expected one."""


def check(name: str, outcome: Outcome) -> None:
    """Raise WrongOutputError if a cell's outcome is not what its name promises."""
    if outcome.error is not None:
        raise WrongOutputError(outcome.error.strip().splitlines()[-1][:200])
    expected = {"print": "hello", "report": "1000000", "first_byte": "now", "cold": "42"}
    text = outcome.text
    if name == "plot" and not outcome.images:
        raise WrongOutputError("no picture came")
    if name == "stream" and text.strip() != "\n".join(["x" * (WIDTH - 1)] * LINES):
        raise WrongOutputError(f"{len(text):,} of {LINES * WIDTH:,} characters came")
    if name in expected and expected[name] not in text.replace(",", ""):
        raise WrongOutputError(f"the output is {text[:80]!r}")


class Measurer:
    """Takes measurements with one adapter."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._main: Any = None
        self._spare: Any = None

    async def prepare(self) -> None:
        """Open the session for the round trips, load what they need, and warm it up."""
        await call(self._adapter.settle)
        self._main = await call(self._adapter.open)
        for _ in range(1 if self._adapter.stateless else WARM_UP_CELLS):
            await self._run(self._main, "1")
        if not self._adapter.stateless:
            for name, setup in SETUPS.items():
                await self._run(self._main, setup)
                await self._run(self._main, CELLS[name])

    async def take(self, name: str, count: int, budget_s: float) -> dict[str, list[float]]:
        """Take one measurement up to `count` times, at least once, in about `budget_s` seconds."""
        taken: dict[str, list[float]] = {}
        end = monotonic() + budget_s
        for number in range(count):
            if number and monotonic() > end:
                break
            for key, value in (await self._once(name)).items():
                taken.setdefault(key, []).append(value)
        return taken

    async def _once(self, name: str) -> dict[str, float]:
        if name in CELLS:
            return {name: await self._cell(name)}
        return await {"open": self._open, "cold": self._cold, "restart": self._restart}.get(
            name, self._memory
        )()

    async def _run(self, session: Any, code: str) -> Outcome:
        outcome: Outcome = await call(self._adapter.run, session, code)
        return outcome

    async def _cell(self, name: str) -> float:
        code = CELLS[name]
        if name == "report" and not self._adapter.shows_values:
            code = f"print({code})"
        if self._adapter.stateless:
            code = SETUPS.get(name, "") + code
        begin = perf_counter()
        outcome = await self._run(self._main, code)
        end = perf_counter()
        check(name, outcome)
        if name == "first_byte":
            end = outcome.first_s or end
        return end - begin

    async def _open(self) -> dict[str, float]:
        await call(self._adapter.settle)
        begin = perf_counter()
        session = await call(self._adapter.open)
        opened = perf_counter()
        outcome = await self._run(session, CELLS["print"])
        end = perf_counter()
        await call(self._adapter.close, session)
        check("print", outcome)
        return {"open": opened - begin, "first_line": end - begin}

    async def _cold(self) -> dict[str, float]:
        begin = perf_counter()
        session = await call(self._adapter.open)
        outcome = await self._run(session, COLD)
        end = perf_counter()
        await call(self._adapter.close, session)
        check("cold", outcome)
        return {"cold": end - begin}

    async def _restart(self) -> dict[str, float]:
        if self._spare is None:
            self._spare = await call(self._adapter.open)
            await self._run(self._spare, CELLS["print"])
        await call(self._adapter.settle)
        begin = perf_counter()
        self._spare = await call(self._adapter.restart, self._spare)
        outcome = await self._run(self._spare, CELLS["print"])
        end = perf_counter()
        check("print", outcome)
        return {"restart": end - begin}

    async def _memory(self) -> dict[str, float]:
        if self._adapter.stateless:
            raise WrongOutputError("it keeps no process between cells")
        await call(self._adapter.settle)
        before = pss_mib(self._adapter.other_processes())
        sessions = []
        for _ in range(MEMORY_SESSIONS):
            sessions.append(await call(self._adapter.open))
            check("memory", await self._run(sessions[-1], HEAVY))
        await call(self._adapter.settle)
        grown = pss_mib(self._adapter.other_processes()) - before
        for session in sessions:
            await call(self._adapter.close, session)
        return {"memory": grown / MEMORY_SESSIONS}

    async def throughput(self, count: int) -> dict[str, float]:
        """Open sessions all at once, then run `1` in all of them for some seconds.

        Returns:
            `ready` seconds until the last one has printed a line, `failed` sessions, `rate` in cells a
            second.
        """
        await call(self._adapter.settle)
        with ThreadPoolExecutor(count) as pool:
            executor = pool if self._adapter.blocking else None

            async def open_one() -> Any:
                session = await call(self._adapter.open, executor=executor)
                check(
                    "print",
                    await call(self._adapter.run, session, CELLS["print"], executor=executor),
                )
                return session

            async def cells(session: Any) -> int:
                done = 0
                while monotonic() < end:
                    outcome = await call(self._adapter.run, session, "1", executor=executor)
                    check("one", outcome)
                    done += 1
                return done

            begin = perf_counter()
            opened = await asyncio.gather(
                *(open_one() for _ in range(count)), return_exceptions=True
            )
            ready = perf_counter() - begin
            sessions = [each for each in opened if not isinstance(each, BaseException)]
            begin, end = perf_counter(), monotonic() + THROUGHPUT_S
            done = await asyncio.gather(*(cells(each) for each in sessions), return_exceptions=True)
            rate = sum(each for each in done if isinstance(each, int)) / (perf_counter() - begin)
            for session in sessions:
                await call(self._adapter.close, session, executor=executor)
        if not sessions:
            raise WrongOutputError(f"no session opened: {opened[0]!r}"[:200])
        wrong = sum(isinstance(each, BaseException) for each in done)
        failed = count - len(sessions) + wrong
        return {
            "ready": ready,
            "failed": failed,
            "rate": rate,
        }
