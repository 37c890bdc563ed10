"""Whatever breaks, each line of a cell comes once and in order, or a result says what happened."""

from __future__ import annotations

import os
import random

import pytest

from tests.backends.probes import JAILS_FIRST
from tests.chaos.rounds import run

SECONDS = float(os.environ.get("KERNELBROKER_CHAOS_SECONDS", "15"))
"""For each kind of sandbox."""
SEED = int(os.environ.get("KERNELBROKER_CHAOS_SEED", random.randrange(10**6)))

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(SECONDS + 600)]


@pytest.mark.parametrize("kind", JAILS_FIRST)
async def test_nothing_is_lost_or_doubled(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Clients lose connections, brokers and sandboxes; each event comes once, and no cell runs twice."""
    report = await run(SECONDS, SEED, kind)
    with capsys.disabled():
        print(f"\n{report}")  # noqa: T201
    verdict = report.verdict
    assert verdict.wrong == [], f"KERNELBROKER_CHAOS_SEED={SEED}"
    assert (verdict.lost, verdict.doubled) == (0, 0)
    assert report.rounds > 0
    assert verdict.outcomes["success"] > 0
