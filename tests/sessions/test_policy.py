"""Policies: what runs, what is warned of, what waits for a confirmation, what is refused."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path

import pytest
from kernelbroker.protocol.errors import (
    ConfirmationRequired,
    Conflict,
    PolicyRefused,
    TooManyRequests,
    Unavailable,
)
from kernelbroker.protocol.findings import Assessment, Finding, Language
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker.risk import assess
from kernelbroker_server.audit import Audit
from kernelbroker_server.sessions import policy
from kernelbroker_server.sessions.gate import Gate
from kernelbroker_server.sessions.judges import Judges
from kernelbroker_server.sessions.policy import CONFIRMATION_S, Confirmations, Policies, Policy
from kernelbroker_server.telemetry.audited import Audited
from kernelbroker_server.tenants.tenant import DEFAULT

from tests.support.backend import FakeBackend
from tests.support.waiting import turns, until
from tests.support.world import result_of, submit, world

RISKY = "import os\nos.system(command)"


def policies(mode: policy.PolicyMode, threshold: policy.Level = "high") -> Policies:
    return Policies({"default": Policy(mode, threshold)})


def request(code: str = RISKY, confirm: str | None = None) -> ExecutionRequest:
    return ExecutionRequest(code=code, confirm=confirm)


def admit(desk: Policies, asked: ExecutionRequest, scope: str) -> list[Finding]:
    return desk.admit(asked, "default", scope, assess(asked.code, asked.language))


def confirmation(desk: Policies, code: str = RISKY, scope: str = "s") -> str:
    with pytest.raises(ConfirmationRequired) as refused:
        admit(desk, request(code), scope)
    assert refused.value.confirmation is not None
    return refused.value.confirmation


async def test_off_judges_nothing() -> None:
    """Without a policy no code is looked at."""
    assert await Policies().judge(request(), "default") is None
    assert Policies().admit(request(), "default", "s") == []


def test_what_was_not_judged_does_not_run() -> None:
    """Code that nobody has judged is to be sent again."""
    with pytest.raises(Unavailable, match="send it again"):
        policies("warn").admit(request(), "default", "s")


@pytest.mark.parametrize("mode", ["warn", "confirm", "block"])
def test_below_the_threshold_code_runs(mode: policy.PolicyMode) -> None:
    """Only what is at least as bad as the threshold matters."""
    assert admit(policies(mode, "critical"), request(), "s") == []
    assert admit(policies(mode, "low"), request("print(1)"), "s") == []


def test_warn_gives_the_findings_from_the_threshold_on() -> None:
    """A warning tells what is bad enough, and nothing else."""
    code = "import os\nos.fork()\nos.system(x)"
    [found] = admit(policies("warn"), request(code), "s")
    assert (found.line, found.level) == (3, "high")
    assert len(admit(policies("warn", "medium"), request(code), "s")) == 2


def test_block_refuses_with_the_findings() -> None:
    """The refusal names what was found, and has no way around it."""
    with pytest.raises(
        PolicyRefused, match=r"judged high: os\.system runs .* \(line 2\)"
    ) as refused:
        admit(policies("block"), request(), "s")
    assert [found.rule for found in refused.value.findings] == ["process"]
    assert refused.value.confirmation is None


def test_a_confirmation_works_once() -> None:
    """The token lets the code through, with its findings; the second time it is asked about again."""
    desk = policies("confirm")
    token = confirmation(desk)
    assert len(admit(desk, request(confirm=token), "s")) == 1
    with pytest.raises(ConfirmationRequired) as again:
        admit(desk, request(confirm=token), "s")
    assert again.value.confirmation not in (None, token)


@pytest.mark.parametrize(
    ("asked", "scope"),
    [
        (ExecutionRequest(code=RISKY + " "), "s"),
        (ExecutionRequest(code=RISKY), "another"),
        (ExecutionRequest(code=RISKY, language="shell"), "s"),
    ],
)
def test_a_confirmation_is_of_that_very_code(asked: ExecutionRequest, scope: str) -> None:
    """Other code, another language, another session: the token is worth nothing, and is used up."""
    desk = Policies({"default": Policy("confirm", "safe")})
    token = confirmation(desk)
    asked.confirm = token
    with pytest.raises(ConfirmationRequired):
        admit(desk, asked, scope)
    with pytest.raises(ConfirmationRequired):
        admit(desk, request(confirm=token), "s")


def test_a_confirmation_expires() -> None:
    """After five minutes the token is worth nothing."""
    now = 0.0
    desk = Policies({"default": Policy("confirm")}, clock=lambda: now)
    early, late = confirmation(desk), confirmation(desk)
    now = CONFIRMATION_S - 1
    assert admit(desk, request(confirm=early), "s")
    now = CONFIRMATION_S
    with pytest.raises(ConfirmationRequired):
        admit(desk, request(confirm=late), "s")


def test_confirmations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never confirms fills no memory: the oldest tokens go first."""
    monkeypatch.setattr(policy, "_MAX_CONFIRMATIONS", 3)
    desk = Confirmations()
    tokens = [desk.hand_out(b"x") for _ in range(5)]
    assert [desk.take_back(token, b"x") for token in tokens] == [False, False, True, True, True]


async def test_a_session_warns_in_the_result(backend: FakeBackend) -> None:
    """Code that is warned of runs, and its result has the findings."""
    async with world(backend, policies=policies("warn")) as w:
        session = await w.open()
        result = await result_of(submit(session, RISKY))
        assert result.success
        assert [found.rule for found in result.findings] == ["process"]
        assert (await result_of(submit(session, "print(1)"))).findings == []


async def test_what_is_refused_leaves_nothing_behind(backend: FakeBackend) -> None:
    """A refused cell is no execution, and takes nobody's place in the line."""
    async with world(backend, policies=policies("block"), gate=Gate(1, 1)) as w:
        session = await w.open()
        for _ in range(3):
            with pytest.raises(PolicyRefused):
                submit(session, RISKY, execution_id="mine")
        assert not session.executions
        assert (await result_of(submit(session, "print(1)", execution_id="mine"))).success


async def test_a_repeat_needs_no_second_confirmation(backend: FakeBackend) -> None:
    """The same request under the same id is the same execution, with the token, a used one, or none."""
    async with world(backend, policies=policies("confirm")) as w:
        session = await w.open()
        with pytest.raises(ConfirmationRequired) as refused:
            submit(session, RISKY, execution_id="mine")
        token = refused.value.confirmation
        execution = submit(session, RISKY, execution_id="mine", confirm=token)
        assert submit(session, RISKY, execution_id="mine", confirm=token) is execution
        assert submit(session, RISKY, execution_id="mine") is execution
        assert await session.judge(ExecutionRequest(code=RISKY, execution_id="mine")) is None
        with pytest.raises(Conflict):
            submit(session, RISKY + " ", execution_id="mine")
        assert (await result_of(execution)).success


async def test_a_full_line_uses_no_confirmation_up(backend: FakeBackend) -> None:
    """Code that is refused for want of room can be sent again with the same token."""
    gate = Gate(1, 1)
    async with world(backend, policies=policies("confirm"), gate=gate) as w:
        session = await w.open()
        with pytest.raises(ConfirmationRequired) as refused:
            submit(session, RISKY)
        filled = 0
        with pytest.raises(TooManyRequests):
            while True:
                gate.of(DEFAULT).enter()
                filled += 1
        with pytest.raises(TooManyRequests):
            submit(session, RISKY, confirm=refused.value.confirmation)
        for _ in range(filled):
            gate.of(DEFAULT).leave()
        assert (await result_of(submit(session, RISKY, confirm=refused.value.confirmation))).success


async def test_long_code_is_judged_beside_the_loop(backend: FakeBackend) -> None:
    """While a long cell is judged the broker goes on, and the judgement is the same."""
    async with world(backend, policies=policies("block")) as w:
        session = await w.open()
        asked = ExecutionRequest(code="x = 1\n" * 5_000 + RISKY)
        judging = asyncio.create_task(session.judge(asked))
        turns = 0
        while not judging.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 2
        with pytest.raises(PolicyRefused) as refused:
            session.submit(asked, assessment=judging.result())
        assert refused.value.findings[0].line == 5_002


async def test_one_is_judged_at_once() -> None:
    """A tenant has its pieces of code judged one after the other; who has gone makes room."""
    begun: list[str] = []
    go_on = asyncio.Event()

    class Slow(Judges):
        async def assess(self, code: str, language: Language) -> Assessment:
            begun.append(code)
            await go_on.wait()
            return Assessment(level="safe", language=language)

    desk = Policies(judges=Slow())
    asked = [asyncio.create_task(desk.assess(code, "python")) for code in "abc"]
    await turns(10)
    assert begun == ["a"]
    asked[0].cancel()
    await until(lambda: begun == ["a", "b"])
    go_on.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)


@pytest.mark.parametrize("mode", ["block", "confirm"])
async def test_refusals_are_audited(
    backend: FakeBackend, tmp_path: Path, mode: policy.PolicyMode
) -> None:
    """What a policy refuses is written down, once, with whose it was and its hash, and no code."""
    path = tmp_path / "audit.log"
    observer = Audited(Audit(path)).notice
    async with world(backend, observer=observer, policies=policies(mode)) as w:
        session = await w.open("mine")
        with pytest.raises((PolicyRefused, ConfirmationRequired)):
            submit(session, RISKY)
        with pytest.raises((PolicyRefused, ConfirmationRequired)):
            await w.registry.judge_for_one(request(), "default")
    records = [json.loads(line) for line in path.read_text().splitlines()]
    refused = [each for each in records if each["event"] == "execution.refused"]
    assert [each.pop("session") for each in refused] == ["mine", None]
    for each in refused:
        del each["time"]
        assert each == {
            "event": "execution.refused",
            "tenant": "default",
            "template": "default",
            "language": "python",
            "code_sha256": hashlib.sha256(RISKY.encode()).hexdigest(),
            "policy": mode,
        }
    assert "os.system" not in path.read_text()
