"""Policies: code that runs, gets a warning, needs a confirmation, or is refused."""

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
from kernelbroker.protocol.findings import Finding
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker.risk import assess
from kernelbroker_server.audit import Audit
from kernelbroker_server.service import policy
from kernelbroker_server.service.policy import CONFIRMATION_S, Confirmations, Policies, Policy
from kernelbroker_server.service.target import Target
from kernelbroker_server.sessions.admission import Admission
from kernelbroker_server.telemetry.audit_observer import AuditObserver
from kernelbroker_server.tenants.tenant import DEFAULT

from tests.support.backend import FakeBackend
from tests.support.world import result_of, submit, world

RISKY = "import os\nos.system(command)"


def policies(mode: policy.PolicyMode, threshold: policy.Level = "high") -> Policies:
    return Policies({"default": Policy(mode, threshold)})


def request(code: str = RISKY, confirm: str | None = None) -> ExecutionRequest:
    return ExecutionRequest(code=code, confirm=confirm)


def check(desk: Policies, asked: ExecutionRequest, scope: str) -> list[Finding]:
    return desk.check(asked, "default", scope, assess(asked.code, asked.language or "python"))


def confirmation(desk: Policies, code: str = RISKY, scope: str = "s") -> str:
    with pytest.raises(ConfirmationRequired) as refused:
        check(desk, request(code), scope)
    assert refused.value.confirmation is not None
    return refused.value.confirmation


async def test_off_assesses_nothing() -> None:
    """Without a policy no code is assessed."""
    assert await Policies().assess_request(request(), "default") is None
    assert Policies().check(request(), "default", "s") == []


def test_code_without_an_assessment_does_not_run() -> None:
    """Code without an assessment must be sent again."""
    with pytest.raises(Unavailable, match="send it again"):
        policies("warn").check(request(), "default", "s")


@pytest.mark.parametrize("mode", ["warn", "confirm", "block"])
def test_below_the_threshold_code_runs(mode: policy.PolicyMode) -> None:
    """Findings below the threshold have no effect."""
    assert check(policies(mode, "critical"), request(), "s") == []
    assert check(policies(mode, "low"), request("print(1)"), "s") == []


def test_warn_gives_the_findings_from_the_threshold_on() -> None:
    """A warning has only the findings at or above the threshold."""
    code = "import os\nos.fork()\nos.system(x)"
    [found] = check(policies("warn"), request(code), "s")
    assert (found.line, found.level) == (3, "high")
    assert len(check(policies("warn", "medium"), request(code), "s")) == 2


def test_block_refuses_with_the_findings() -> None:
    """The refusal has the findings, and cannot be confirmed."""
    with pytest.raises(
        PolicyRefused, match=r"assessed as high: os\.system runs .* \(line 2\)"
    ) as refused:
        check(policies("block"), request(), "s")
    assert [found.rule for found in refused.value.findings] == ["process"]
    assert refused.value.confirmation is None


def test_a_confirmation_works_once() -> None:
    """A token lets the code run once, with its findings."""
    desk = policies("confirm")
    token = confirmation(desk)
    assert len(check(desk, request(confirm=token), "s")) == 1
    with pytest.raises(ConfirmationRequired) as again:
        check(desk, request(confirm=token), "s")
    assert again.value.confirmation not in (None, token)


@pytest.mark.parametrize(
    ("asked", "scope"),
    [
        (ExecutionRequest(code=RISKY + " "), "s"),
        (ExecutionRequest(code=RISKY), "another"),
        (ExecutionRequest(code=RISKY, language="shell"), "s"),
    ],
)
def test_a_confirmation_is_for_one_request(asked: ExecutionRequest, scope: str) -> None:
    """For other code, another language or another session a token is invalid, and is not used up."""
    desk = Policies({"default": Policy("confirm", "safe")})
    token = confirmation(desk)
    asked.confirm = token
    with pytest.raises(ConfirmationRequired):
        check(desk, asked, scope)
    assert check(desk, request(confirm=token), "s")
    with pytest.raises(ConfirmationRequired):
        check(desk, request(confirm=token), "s")


def test_a_confirmation_expires() -> None:
    """After five minutes the token is invalid."""
    now = 0.0
    desk = Policies({"default": Policy("confirm")}, clock=lambda: now)
    early, late = confirmation(desk), confirmation(desk)
    now = CONFIRMATION_S - 1
    assert check(desk, request(confirm=early), "s")
    now = CONFIRMATION_S
    with pytest.raises(ConfirmationRequired):
        check(desk, request(confirm=late), "s")


def test_confirmations_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of tokens is limited: the oldest ones are dropped first."""
    monkeypatch.setattr(policy, "_MAX_CONFIRMATIONS", 3)
    desk = Confirmations()
    tokens = [desk.issue(b"x") for _ in range(5)]
    assert [desk.redeem(token, b"x") for token in tokens] == [False, False, True, True, True]


async def test_a_session_warns_in_the_result(backend: FakeBackend) -> None:
    """Code with a warning runs, and its result has the findings."""
    async with world(backend, policies=policies("warn")) as w:
        session = await w.open()
        result = await result_of(submit(session, RISKY))
        assert result.success
        assert [found.rule for found in result.findings] == ["process"]
        assert (await result_of(submit(session, "print(1)"))).findings == []


async def test_a_refused_cell_leaves_nothing_behind(backend: FakeBackend) -> None:
    """A refused cell is no execution, and takes no place in the queue."""
    async with world(backend, policies=policies("block"), admission=Admission(1, 1)) as w:
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
        assert (
            await w.service.executions.assess_for(
                session, ExecutionRequest(code=RISKY, execution_id="mine")
            )
            is None
        )
        with pytest.raises(Conflict):
            submit(session, RISKY + " ", execution_id="mine")
        assert (await result_of(execution)).success


async def test_a_full_queue_keeps_the_confirmation(backend: FakeBackend) -> None:
    """Code that is refused because of a full queue can be sent again with the same token."""
    admission = Admission(1, 1)
    async with world(backend, policies=policies("confirm"), admission=admission) as w:
        session = await w.open()
        with pytest.raises(ConfirmationRequired) as refused:
            submit(session, RISKY)
        filled = 0
        with pytest.raises(TooManyRequests):
            while True:
                admission.queue_of(DEFAULT).admit()
                filled += 1
        with pytest.raises(TooManyRequests):
            submit(session, RISKY, confirm=refused.value.confirmation)
        for _ in range(filled):
            admission.queue_of(DEFAULT).withdraw()
        assert (await result_of(submit(session, RISKY, confirm=refused.value.confirmation))).success


async def test_long_code_does_not_block_the_loop(backend: FakeBackend) -> None:
    """While a long cell is assessed the event loop continues."""
    async with world(backend, policies=policies("block")) as w:
        session = await w.open()
        asked = ExecutionRequest(code="x = 1\n" * 5_000 + RISKY)
        assessing = asyncio.create_task(w.service.executions.assess_for(session, asked))
        turns = 0
        while not assessing.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns > 2
        with pytest.raises(PolicyRefused) as refused:
            w.service.executions.submit(session, asked, assessment=assessing.result())
        assert refused.value.findings[0].line == 5_002


@pytest.mark.parametrize("mode", ["block", "confirm"])
async def test_refusals_are_audited(
    backend: FakeBackend, tmp_path: Path, mode: policy.PolicyMode
) -> None:
    """The audit log records a refusal once, with tenant and hash, and without code."""
    path = tmp_path / "audit.log"
    observer = AuditObserver(Audit(path)).on_event
    async with world(backend, observer=observer, policies=policies(mode)) as w:
        session = await w.open("mine")
        with pytest.raises((PolicyRefused, ConfirmationRequired)):
            submit(session, RISKY)
        with pytest.raises((PolicyRefused, ConfirmationRequired)):
            async with w.service.executions.execute(request(), Target()):
                pass
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
