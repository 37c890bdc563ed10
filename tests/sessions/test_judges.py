"""Code that was made for the judge: it ends a process of its own, and nobody waits for it."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from kernelbroker import risk
from kernelbroker.protocol.errors import Unavailable
from kernelbroker.protocol.findings import Language
from kernelbroker_server.sessions import judge_process
from kernelbroker_server.sessions import judges as judges_module
from kernelbroker_server.sessions.judges import Judges

from tests.support.waiting import DEADLINE_S, cancelled_at, turns, until

RISKY = "import os\nos.system(command)"


@pytest.fixture
async def judges() -> AsyncIterator[Judges]:
    judges = Judges()
    yield judges
    await judges.stop()
    assert processes() == []


def processes() -> list[int]:
    """Of ours, those that judge."""
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    found = []
    for pid in map(int, path.read_text().split()):
        if b"judge_process" in Path(f"/proc/{pid}/cmdline").read_bytes():
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
async def test_as_anywhere(judges: Judges, language: Language, code: str) -> None:
    """The judgement is what it would be in one's own process."""
    assert await judges.assess(code, language) == risk.assess(code, language)


@pytest.mark.parametrize(
    ("language", "line"),
    [
        ("python", "x = [1, 2, 3]\n"),
        ("shell", "echo one two | cat\n"),
        ("javascript", "a = (b) => b + 1;\n"),
    ],
)
async def test_the_longest_code(judges: Judges, language: Language, line: str) -> None:
    """What people may write does not overwhelm a process, long as it is."""
    assessment = await judges.assess(line * (100_000 // len(line)), language)
    assert assessment.level in ("safe", "medium")  # on a slow machine it is not judged to its end


@pytest.mark.parametrize(
    ("language", "code"), [("shell", "a|" * 20_000), ("javascript", "|!" * 8_000)]
)
async def test_code_that_no_parser_can_take(judges: Judges, language: Language, code: str) -> None:
    """It is judged high, the loop goes on meanwhile, and so do others' judgements."""
    asked = asyncio.create_task(judges.assess(code, language))
    async with asyncio.timeout(DEADLINE_S):
        assert (await judges.assess("print(1)", "python")).level == "safe"
        assert not asked.done()
        assessment = await asked
        assert (assessment.level, assessment.language) == ("high", language)
        [finding] = assessment.findings
        assert "could not be judged" in finding.reason
        assert (await judges.assess(RISKY, "python")).level == "high"


async def test_processes_are_kept_and_replaced(judges: Judges) -> None:
    """There are two at most, for all; one that was killed is replaced, and costs nobody a judgement."""
    await asyncio.gather(*(judges.assess("print(1)", "python") for _ in range(9)))
    before = processes()
    assert 1 <= len(before) <= 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    await until(lambda: all(judge.has_ended for judge in judges._idle))
    assert (await judges.assess("print(1)", "python")).level == "safe"


async def test_the_end(judges: Judges, caplog: pytest.LogCaptureFixture) -> None:
    """When the broker stops, code that is being judged is not blamed, and no process is started."""
    asked = asyncio.create_task(judges.assess("a|" * 20_000, "shell"))
    await until(lambda: processes() != [])
    await judges.stop()
    for judging in (asked, judges.assess("print(1)", "python")):
        with pytest.raises(Unavailable, match="shutting down"):
            await judging
    assert processes() == []
    assert caplog.messages == []


@pytest.mark.parametrize("turn", range(4))
async def test_the_end_while_one_begins(judges: Judges, turn: int) -> None:
    """A process that is being started when the broker stops does not stay."""
    asked = asyncio.create_task(judges.assess("print(1)", "python"))
    await turns(turn)
    await judges.stop()
    with pytest.raises(Unavailable, match="shutting down"):
        await asked
    assert processes() == []


async def test_no_process_to_be_had(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that is full is no fault of the code's; later it is judged."""
    with monkeypatch.context() as full:
        full.setattr(judges_module, "Child", Mock(side_effect=BlockingIOError(11, "try again")))
        with pytest.raises(Unavailable, match="no process to judge it in: try again"):
            await judges.assess("print(1)", "python")
    assert (await judges.assess("print(1)", "python")).level == "safe"


async def test_less_than_it_asks_for() -> None:
    """Where the broker itself may take less, so may its judges."""
    code = (
        "import resource as r; from kernelbroker_server.sessions import judge_process as p;"
        "r.setrlimit(r.RLIMIT_AS, (300 << 20, 300 << 20)); p._limit(r.RLIMIT_AS, 512 << 20);"
        "assert r.getrlimit(r.RLIMIT_AS) == (300 << 20, 300 << 20);"
        "p._limit(r.RLIMIT_CORE, 0); assert r.getrlimit(r.RLIMIT_CORE)[0] == 0"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-I", "-c", code)
    assert await process.wait() == 0


async def test_who_asked_has_gone(judges: Judges) -> None:
    """A judgement that nobody waits for is ended, with its process."""
    asked = asyncio.create_task(judges.assess("a|" * 20_000, "shell"))
    await until(lambda: processes() != [])
    asked.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asked
    assert processes() == []
    assert (await judges.assess("print(1)", "python")).level == "safe"


async def test_cancelled_at_every_await() -> None:
    """Wherever it is cancelled, no process stays that is not kept for the next."""
    for step in itertools.count(1):
        judges = Judges()
        if not await cancelled_at(judges.assess("print(1)", "python"), step):
            break
        assert processes() == []
    assert step > 2
    await judges.stop()


async def test_what_is_not_installed(judges: Judges, monkeypatch: pytest.MonkeyPatch) -> None:
    """Code of a language that has no parser here cannot be judged, which is not the code's fault."""

    def refuse(*_: object) -> None:
        raise risk.ParserMissing("shell needs tree-sitter")

    monkeypatch.setattr(judge_process, "assess", refuse)
    answer = judge_process.answer(b'{"code": "ls", "language": "shell"}')
    assert answer.assessment is None

    class Poor:
        has_ended = False

        async def ask(self, _: object) -> judge_process.Answer:
            return answer

        async def end(self) -> None:
            pass

    judges._idle.append(Poor())  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="tree-sitter where the broker runs"):
        await judges.assess("ls", "shell")
