"""Cells that crash, kill their kernel, or do not stop: each has one result with the cause."""

from __future__ import annotations

import asyncio
import itertools
import os
import statistics
import threading
import time
from collections.abc import Iterator

import kernelbroker
import pytest
from kernelbroker import events

from tests.e2e.support import GRACE_S, BrokerProcess, Measured, whole_system
from tests.support.requires import requires
from tests.support.results import cause_of

pytestmark = whole_system

TOLD_WITHIN_S = 1.0
INTERRUPTED_WITHIN_S = 0.1
MAX_GAP_S = 1.0

ANNOUNCE = "import asyncio, ctypes, os, signal, sys, threading, time\nprint('now', flush=True)\n"
DEATHS = {
    "exit": "os._exit(1)",
    "SIGKILL": "os.kill(os.getpid(), signal.SIGKILL)",
    "SIGTERM": "signal.signal(signal.SIGTERM, signal.SIG_DFL); os.kill(os.getpid(), 15); time.sleep(9)",
    "segfault": "ctypes.string_at(0)",
    "abort": "os.abort()",
    "stack": "class R:\n  def __eq__(self, other): return self == other\n"
    "sys.setrecursionlimit(10**9); R() == R()",
    "gateway": "os.kill(os.getppid(), signal.SIGKILL); time.sleep(9)",
    "everybody": "os.kill(-1, signal.SIGKILL); time.sleep(9)",
    "in a thread": "threading.Thread(target=os._exit, args=(3,)).start(); time.sleep(9)",
}


def noisy(seconds: float) -> float:
    """How long it may take where other work goes on at the same time: the longer, the more there is."""
    return seconds * max(3.0, 2 * os.getloadavg()[0] / (os.cpu_count() or 1))


class Neighbour:
    """A session whose cell prints twenty times a second, watched by a separate thread."""

    def __init__(self, broker: BrokerProcess) -> None:
        self.result: events.Result | None = None
        self._stamps: list[float] = []
        self._client = kernelbroker.sync.connect(broker.url, broker.token)
        self._session = self._client.session().open()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        code = "import time\nwhile True:\n    print('tick', flush=True)\n    time.sleep(0.05)"
        for event in self._session.stream(code, timeout=300):
            self._stamps.append(time.monotonic())
            if isinstance(event, events.Result):
                self.result = event

    def longest_gap(self, since: float) -> float:
        stamps = [since, *(stamp for stamp in self._stamps if stamp > since), time.monotonic()]
        return max(later - earlier for earlier, later in itertools.pairwise(stamps))

    def stop(self) -> None:
        self._session.interrupt()
        self._thread.join(30)
        self._client.close()


@pytest.fixture(scope="module")
def neighbour(broker: BrokerProcess) -> Iterator[Neighbour]:
    neighbour = Neighbour(broker)
    yield neighbour
    neighbour.stop()
    assert neighbour.result is not None
    assert cause_of(neighbour.result) == "interrupted"
    assert not neighbour.result.kernel_restarted


@pytest.fixture(autouse=True)
def undisturbed(
    neighbour: Neighbour, measured: Measured, request: pytest.FixtureRequest
) -> Iterator[None]:
    """During the test the neighbour's lines keep coming."""
    began = time.monotonic()
    yield
    assert neighbour.result is None
    gap = neighbour.longest_gap(began)
    if gap > MAX_GAP_S / 2:
        measured(f"the neighbour's longest wait during {request.node.name}", gap)
    assert gap < noisy(MAX_GAP_S)


async def outcome(
    session: kernelbroker.Session, code: str, timeout: float = 30
) -> tuple[events.Result, float]:
    """The one result of a cell that announces its misdeed, and the seconds from then to the result."""
    announced = time.monotonic()
    seen = []
    async for event in session.stream(ANNOUNCE + code, timeout=timeout):
        if isinstance(event, events.Stdout) and event.content == "now\n":
            announced = time.monotonic()
        seen.append(event)
    took = time.monotonic() - announced
    results = [event for event in seen if isinstance(event, events.Result)]
    assert [event.seq for event in seen] == list(range(1, len(seen) + 1))
    assert results == [seen[-1]]
    assert not results[0].success
    return results[0], took


async def prepare(session: kernelbroker.Session) -> None:
    result = await session.run("kept = 1; _ = open('/data/kept.txt', 'w').write('kept')")
    assert result.success, result.error


async def goes_on(session: kernelbroker.Session, *, with_state: bool) -> None:
    """The next cell runs, with the files, and with the variables if nothing was lost."""
    result = await session.run("print(open('/data/kept.txt').read(), 'kept' in globals())")
    assert result.success, result.error
    assert result.stdout == f"kept {with_state}\n"
    assert not result.kernel_restarted  # the previous result has reported it


@pytest.mark.parametrize("code", DEATHS.values(), ids=DEATHS)
async def test_a_dead_kernel_ends_its_cell(
    session: kernelbroker.Session,
    measured: Measured,
    request: pytest.FixtureRequest,
    code: str,
) -> None:
    """A dead kernel ends its cell at once with the cause; the next cell has a new one and the files."""
    await prepare(session)
    result, took = await outcome(session, code)
    measured(f"death told ({request.node.callspec.id})", took)
    assert cause_of(result) in ("kernel_died", "sandbox_lost"), result.error
    assert result.kernel_restarted
    assert result.execution_time is None
    assert took < noisy(TOLD_WITHIN_S)
    await goes_on(session, with_state=False)


@pytest.mark.parametrize(
    "code",
    ["x = [b'x' * 2**20 for _ in range(4096)]", "x = b'x' * 2**32", "import numpy\nx = numpy.ones(2**30)"],
    ids=["piecemeal", "at once", "numpy"],
)  # fmt: skip
async def test_out_of_memory_has_its_own_cause(session: kernelbroker.Session, code: str) -> None:
    """A kernel that exceeds its memory is distinguished from other deaths."""
    await prepare(session)
    result, _ = await outcome(session, code)
    assert cause_of(result) == "out_of_memory", result.error
    assert "1.0 GiB" in str(result.error)
    assert result.kernel_restarted
    await goes_on(session, with_state=False)


@requires("control groups")
async def test_child_out_of_memory(session: kernelbroker.Session) -> None:
    """A child process that takes too much memory dies alone; the kernel keeps its state."""
    await prepare(session)
    result = await session.run(
        "import subprocess, sys\n"
        "bomb = 'x = [b\"x\" * 2**20 for _ in range(4096)]'\n"
        "print(subprocess.run([sys.executable, '-c', bomb]).returncode)",
        timeout=60,
    )
    assert (result.success, result.stdout) == (True, "-9\n"), result.error
    await goes_on(session, with_state=True)


async def test_a_fork_bomb_is_contained(session: kernelbroker.Session) -> None:
    """A fork bomb is limited, ends at its timeout, and leaves a working session."""
    await prepare(session)
    code = "while True:\n    try:\n        os.fork()\n    except BaseException:\n        pass"
    result, took = await outcome(session, code, timeout=1)
    assert cause_of(result) in ("timeout", "kernel_died", "sandbox_lost"), result.error
    assert took < 1 + GRACE_S + noisy(TOLD_WITHIN_S)
    await goes_on(session, with_state=False)


@pytest.mark.parametrize(
    "start",
    [
        "subprocess.Popen(['sleep', '3600'])",
        "threading.Thread(target=hold.wait, daemon=True).start()",
    ],
    ids=["processes", "threads"],
)
async def test_output_needs_no_further_process(session: kernelbroker.Session, start: str) -> None:
    """At the limit of processes, large output, errors and files still arrive, and the state is kept."""
    await prepare(session)
    limit = f"""
import subprocess, threading
hold, started = threading.Event(), []
try:
    while True:
        started.append({start})
except (OSError, RuntimeError):
    print("full")"""
    assert (await session.run(limit, timeout=60)).stdout.endswith("full\n")
    try:
        cells = {
            "print('x' * 2_000_000)": None,
            "display({'text/html': 'x' * 500_000}, raw=True)": None,
            "'x' * 500_000": None,
            "raise ValueError('x' * 500_000)": "ValueError",
            "open('made.txt', 'w').write('y' * 200_000)": None,
        }
        for code, error in cells.items():
            result = await session.run(code, timeout=30)
            assert str(result.error).startswith(error) if error else result.success, result.error
        assert len(await session.files.read("made.txt")) == 200_000
    finally:
        freed = await session.run(
            "hold.set()\nfor each in started:\n    if each: each.kill(); each.wait()", timeout=30
        )
    assert freed.success, freed.error
    await goes_on(session, with_state=True)


@pytest.mark.parametrize(
    "code",
    ["while True: pass", "time.sleep(3600)", "await asyncio.sleep(3600)", "threading.Event().wait()"],
)  # fmt: skip
async def test_a_timeout_keeps_the_state(session: kernelbroker.Session, code: str) -> None:
    """A cell that takes too long is interrupted, and the state is kept."""
    await prepare(session)
    result, took = await outcome(session, code, timeout=0.5)
    assert (cause_of(result), result.kernel_restarted) == ("timeout", False), result.error
    assert str(result.error).startswith("TimeoutError: the cell ran longer than 0.5 s")
    assert took < 0.5 + noisy(INTERRUPTED_WITHIN_S + TOLD_WITHIN_S)
    await goes_on(session, with_state=True)


@pytest.mark.parametrize(
    "code",
    [
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\nwhile True: pass",
        "while True:\n    try:\n        time.sleep(60)\n    except BaseException:\n        pass",
        "os.kill(os.getpid(), signal.SIGSTOP)",
        "os.kill(os.getppid(), signal.SIGSTOP); time.sleep(60)",
    ],
    ids=["ignores", "catches", "stopped", "gateway stopped"],
)
async def test_a_cell_that_ignores_its_interrupt_loses_its_kernel(
    session: kernelbroker.Session, code: str
) -> None:
    """A cell that ignores its interrupt loses its kernel after the grace period."""
    await prepare(session)
    result, took = await outcome(session, code, timeout=0.5)
    assert (cause_of(result), result.kernel_restarted) == ("timeout", True), result.error
    assert GRACE_S < took < 0.5 + GRACE_S + noisy(TOLD_WITHIN_S)
    await goes_on(session, with_state=False)


# Several sleeps: CPython sees a signal that comes right before a blocking call only after it.
@pytest.mark.parametrize(
    "code", ["while True: pass", "while True: time.sleep(0.05)", "await asyncio.sleep(3600)"]
)
async def test_an_interrupt_ends_a_cell_quickly(
    session: kernelbroker.Session, measured: Measured, code: str
) -> None:
    """An interrupt ends a cell within a tenth of a second, and the state is kept."""
    await prepare(session)
    took = []
    for _ in range(5):
        asked_at = 0.0
        async for event in session.stream(ANNOUNCE + code):
            if isinstance(event, events.Stdout):
                asked_at = time.monotonic()
                await session.interrupt()
            if isinstance(event, events.Result):
                took.append(time.monotonic() - asked_at)
                assert cause_of(event) == "interrupted"
                assert event.error_detail.name in ("KeyboardInterrupt", "CancelledError")
    measured(f"interrupted ({code})", *took)
    assert statistics.median(took) < noisy(INTERRUPTED_WITHIN_S)
    await goes_on(session, with_state=True)


async def test_interrupt_at_the_beginning(session: kernelbroker.Session) -> None:
    """An interrupt that comes while its cell is prepared ends it, before it has done anything."""
    await prepare(session)
    for count in range(40):
        # Not a blocking call: CPython sees a signal that comes right before one only after it.
        async for event in session.stream("while True: pass", cwd=".", timeout=60):
            if isinstance(event, events.Started):
                await asyncio.sleep(count / 10_000)
                await session.interrupt()
            if isinstance(event, events.Result):
                assert cause_of(event) == "interrupted"
    await goes_on(session, with_state=True)


async def test_interrupt_at_the_end(session: kernelbroker.Session) -> None:
    """An interrupt at the end of a cell reaches that cell or none, and the result says so."""
    await prepare(session)
    ends = []
    for _ in range(30):
        first = session.stream("print('the last word', flush=True)", timeout=5)
        second: asyncio.Task[kernelbroker.ExecutionResult] | None = None
        async for event in first:
            if isinstance(event, events.Started):
                second = asyncio.create_task(session.run("sum(range(2_000_000))", timeout=5))
                await asyncio.sleep(0)
            if isinstance(event, events.Stdout):
                await session.interrupt()
            if isinstance(event, events.Result):
                ends.append(event.error_detail)
        assert second is not None
        ends.append((await second).error_detail)
    assert {detail.cause for detail in ends if detail is not None} <= {"interrupted"}
    await goes_on(session, with_state=True)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("sys.exit('bye')", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise asyncio.CancelledError", "CancelledError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("raise BaseException('odd')", "BaseException"),
        ("quit('no data')", "SystemExit"),
        ("import sys; sys.exit(1)", "SystemExit"),
        ("raise ExceptionGroup('several', [ValueError('a'), KeyError('b')])", "ExceptionGroup"),
    ],
)
async def test_any_exception_is_an_ordinary_error(
    session: kernelbroker.Session, code: str, name: str
) -> None:
    """Any exception of a cell is an ordinary error, and the state is kept."""
    await prepare(session)
    result, _ = await outcome(session, code)
    assert (cause_of(result), result.error_detail.name) == ("exception", name)
    assert not result.kernel_restarted
    await goes_on(session, with_state=True)


@pytest.mark.parametrize(
    "code",
    [
        "os.closerange(0, 51)",
        "await get_ipython().kernel.do_shutdown(False)",
        "get_ipython().kernel.iopub_socket.close()",
        "sys.stdout = sys.stderr = None",
        "os.killpg(0, signal.SIGINT); time.sleep(1)",
    ],
)
async def test_a_cell_that_breaks_its_kernel_has_one_result(
    session: kernelbroker.Session, code: str
) -> None:
    """A cell that breaks its kernel has one result in time, and loses at most that kernel."""
    await prepare(session)
    seen = [event async for event in session.stream(ANNOUNCE + code, timeout=1)]
    assert sum(isinstance(event, events.Result) for event in seen) == 1
    # What it broke may show in a later cell only; the one after that has a kernel that works.
    await session.run("1", timeout=0.5)
    for _ in range(3):
        result = await session.run("print(open('/data/kept.txt').read())", timeout=10)
        if result.success:
            break
    assert (result.success, result.stdout) == (True, "kept\n"), result.error
    await session.restart()


async def test_a_death_between_cells_is_reported(session: kernelbroker.Session) -> None:
    """A kernel that died while no cell ran is replaced, and the next result says so."""
    await prepare(session)
    await session.run("import os, threading\nthreading.Timer(0.05, os._exit, (1,)).start()")
    result = await session.run("import time; time.sleep(0.5)")
    while not result.kernel_restarted:  # it died within that cell, or else within the next
        result = await session.run("import time; time.sleep(0.5)")
    await goes_on(session, with_state=False)


async def test_waiting_cells_survive_a_death(session: kernelbroker.Session) -> None:
    """Cells behind one that kills the kernel run in the new one, in their order."""
    await prepare(session)
    cells = ["os = __import__('os'); os._exit(1)", "a = [1]", "a.append(2)", "print(a)"]
    results = await asyncio.gather(*(session.run(cell) for cell in cells))
    assert [result.success for result in results] == [False, True, True, True]
    assert results[-1].stdout == "[1, 2]\n"
