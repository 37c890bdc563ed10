"""The corpus is judged once, and its counts stand at the end of the run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from tests.risk.report import Outcome, lines, outcomes

_JUDGED = pytest.StashKey[list[Outcome]]()


@pytest.fixture(autouse=True)
def frozen() -> Iterator[None]:
    """Judging has a bound of processor time, of which collecting what other tests left would take much."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(scope="session")
def judged(pytestconfig: pytest.Config) -> list[Outcome]:
    pytestconfig.stash[_JUDGED] = outcomes()
    return pytestconfig.stash[_JUDGED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = terminalreporter.config.stash.get(_JUDGED, None)
    if found is not None:
        terminalreporter.section("risk corpus")
        for line in lines(found):
            terminalreporter.write_line(line)
