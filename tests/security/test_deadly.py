"""Attempts that end their own kernel, or forge its messages, and their effects on others.

Meanwhile a cell of another session prints all the time. The attempts must not affect it.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernelbroker.protocol import events

from .attempts.deadly import ENDS, FORGERIES, SENT, SPEAK_FOR_THE_KERNEL, Deadly, Forgery
from .conftest import Inside, World

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def doomed(world: World) -> Iterator[Inside]:
    """One session for all: each attempt leaves it with a fresh sandbox."""
    with world.client.session() as session:
        yield Inside(world, session)


@pytest.fixture(autouse=True)
def bystander(world: World) -> Iterator[None]:
    """During the test another session keeps its variables and its files."""
    yield
    result = world.neighbour.run(
        "verdict = [port.fileno() > 0, os.path.exists(f'/data/{needle}')]", result_var="verdict"
    )
    assert (result.return_value, result.kernel_restarted) == ([True, True], False)


@pytest.mark.parametrize("attempt", ENDS, ids=lambda attempt: attempt.name)
def test_a_deadly_attempt_ends_with_its_cause(doomed: Inside, attempt: Deadly) -> None:
    """The attempt ends with its cause as printable text; the next cell has a working sandbox."""
    doomed.prepare()
    result = doomed.session.run(attempt.code, timeout=attempt.timeout)
    if attempt.causes:
        assert result.error_detail is not None, result.stdout
        assert result.error_detail.cause in attempt.causes.split(), result.error
        assert result.kernel_restarted
        assert str(result.error).isprintable()
    else:
        assert result.success, result.error_detail
        doomed.session.restart()
    doomed.prepare()


def sent(inside: Inside) -> str:
    """What the log of the last forgery tells."""
    return inside.session.files.read_text(SENT)


@pytest.mark.parametrize("attempt", FORGERIES, ids=lambda attempt: attempt.name)
def test_a_forgery_affects_only_its_own_session(
    doomed: Inside, world: World, attempt: Forgery
) -> None:
    """A cell that forges its kernel's messages has one result, and affects only its own session."""
    code = SPEAK_FOR_THE_KERNEL + attempt.code
    seen = list(doomed.session.stream(code, timeout=3, result_var="parent"))
    assert [isinstance(event, events.Result) for event in seen].index(True) == len(seen) - 1
    # What it broke may show in the next cell only; the one after that has a kernel that works.
    doomed.session.run("1", timeout=1)
    doomed.prepare()
    assert sent(doomed) == "." * attempt.messages, "an attempt was not made"
    assert world.broker.complaints() == []


def test_forged_messages_arrive(doomed: Inside) -> None:
    """As a positive control, forged messages reach the broker and are processed."""
    doomed.prepare()
    said = SPEAK_FOR_THE_KERNEL + 'say("stream", {"name": "stdout", "text": "forged"})'
    assert doomed.session.run(said).stdout == "forged"
    end = """
reply({"status": "ok", "execution_count": 7, "user_expressions": {}, "payload": []})
say("status", {"execution_state": "idle"})
time.sleep(2)
1 / 0"""
    assert doomed.session.run(SPEAK_FOR_THE_KERNEL + end).success  # an end before the cell's own
    assert sent(doomed) == ".."
    refused = doomed.session.run(f"{SPEAK_FOR_THE_KERNEL}reply({{1, 2}})")
    assert not refused.success
    assert sent(doomed) == ".!"
    doomed.session.restart()
    doomed.prepare()
