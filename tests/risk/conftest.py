"""The corpus is judged once, and its counts stand at the end of the run."""

from __future__ import annotations

import pytest

from tests.risk.report import Outcome, lines, outcomes

_JUDGED = pytest.StashKey[list[Outcome]]()


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
