"""Connections that break after any byte: no event is lost or repeated."""

from __future__ import annotations

import random

import kernelbroker
import pytest
from kernelbroker import events
from kernelbroker.protocol.messages import Execute

SEED = 17
TEXTS = [f"line {number} äöü\n" for number in range(12)]
CUTS = 80


async def stream_of(session: kernelbroker.Session) -> list[events.Event]:
    return [event async for event in session.stream("c")]


def check(got: list[events.Event]) -> None:
    assert [event.seq for event in got] == list(range(1, len(got) + 1))
    printed = [event.content for event in got if isinstance(event, events.Stdout)]
    assert "".join(printed) == "".join(TEXTS)
    assert isinstance(got[-1], events.Result)
    assert got[-1].success


@pytest.fixture
async def size(connected, scripts) -> int:
    """The number of bytes that the broker sends for a whole session."""
    connected.cells["c"] = scripts.printing(*TEXTS)
    async with kernelbroker.connect() as broker, broker.session() as session:
        before = connected.relayed
        check(await stream_of(session))
        return connected.relayed - before


@pytest.mark.slow
async def test_a_stream_survives_a_cut_at_any_byte(connected, size) -> None:
    """If the connection breaks after any byte, the stream continues without a gap or a duplicate."""
    places = random.Random(SEED).sample(range(size), min(CUTS, size))
    async with kernelbroker.connect() as broker, broker.session() as session:
        for place in places:
            connected.budget = place
            check(await stream_of(session))
            connected.budget = None
        cells = connected.api.world.backend.cells
        assert len([cell for cell in cells if cell.code == "c"]) == len(places)
    assert len({op.execution_id for op in connected.ops(Execute)}) == len(places) + 1


async def test_a_stream_survives_repeated_cuts(connected, size) -> None:
    """If the connection breaks after every few messages, all events still arrive."""
    rng = random.Random(SEED)
    async with kernelbroker.connect() as broker, broker.session() as session:
        for _ in range(10):
            pieces = [rng.randrange(size // 2, size * 2) for _ in range(4)]
            connected.budgets = list(pieces)
            connected.budget = connected.budgets.pop(0)
            check(await stream_of(session))
            connected.budgets, connected.budget = [], None


@pytest.mark.parametrize("kind", ["head", "handshake"])
async def test_a_cut_while_opening_leaves_no_session(connected, kind: str) -> None:
    """If the connection breaks while a session opens, the session works or none is left."""
    rng = random.Random(SEED)
    limit = 150 if kind == "head" else 500
    for _ in range(30):
        connected.budget = rng.randrange(limit)
        try:
            async with kernelbroker.connect() as broker, broker.session() as session:
                connected.budget = None
                assert (await session.run("other")).success
        except (kernelbroker.ConnectionFailed, kernelbroker.ConnectionLost):
            pass
        connected.budget = None
        await connected.until(connected.no_sessions)
