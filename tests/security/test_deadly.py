"""Attempts that end their own kernel, or speak in its name: what they cost, and whom."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kernelbroker.protocol import events

from .attempts.deadly import ENDS, Deadly, all_deadly
from .conftest import Inside, World

pytestmark = pytest.mark.sandbox


@pytest.fixture(scope="module")
def doomed(world: World) -> Iterator[Inside]:
    """One session for all: each attempt leaves it with a fresh sandbox."""
    with world.client.session() as session:
        yield Inside(world, session)


@pytest.fixture(autouse=True)
def bystander(world: World) -> Iterator[None]:
    """Whatever the test does, another session keeps its variables and its files."""
    yield
    result = world.neighbour.run(
        "told = [port.fileno() > 0, os.path.exists(f'/data/{needle}')]", result_var="told"
    )
    assert (result.return_value, result.kernel_restarted) == ([True, True], False)


@pytest.mark.parametrize("attempt", ENDS, ids=lambda attempt: attempt.name)
def test_end(doomed: Inside, attempt: Deadly) -> None:
    """It ends with its cause, told in printable words; the next cell has a sandbox that works."""
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


@pytest.mark.parametrize(
    "attempt", [a for a in all_deadly() if a not in ENDS], ids=lambda attempt: attempt.name
)
def test_forgery(doomed: Inside, world: World, attempt: Deadly) -> None:
    """A cell that speaks for its kernel has one result all the same, and spoils its own session only."""
    seen = list(doomed.session.stream(attempt.code, timeout=attempt.timeout))
    assert [isinstance(event, events.Result) for event in seen].index(True) == len(seen) - 1
    # What it broke may show in the next cell only; the one after that has a kernel that works.
    doomed.session.run("1", timeout=1)
    doomed.prepare()
    assert world.broker.complaints() == []
