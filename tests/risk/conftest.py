"""Assesses the corpus once, and prints its counts at the end of the run."""

from __future__ import annotations

import pytest

from tests.risk.report import Outcome, lines, outcomes

_ASSESSED = pytest.StashKey[list[Outcome]]()


@pytest.fixture(scope="session")
def assessed(pytestconfig: pytest.Config) -> list[Outcome]:
    pytestconfig.stash[_ASSESSED] = outcomes()
    return pytestconfig.stash[_ASSESSED]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    found = terminalreporter.config.stash.get(_ASSESSED, None)
    if found is not None:
        terminalreporter.section("risk corpus")
        for line in lines(found):
            terminalreporter.write_line(line)
