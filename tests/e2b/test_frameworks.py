"""Agent frameworks that are built on E2B's client, unmodified, each with a scripted model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2b.support import E2bClients
from tests.e2e.support import BrokerProcess, running_broker, whole_system

pytestmark = whole_system

DIRECTORY = Path(
    os.environ.get("KERNELBROKER_TEST_E2B_FRAMEWORKS", "/var/tmp/kernelbroker-e2b-frameworks")
)
GET = Path(__file__).parents[1] / "support" / "e2b_frameworks" / "get"
PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="module")
def frameworks() -> None:
    """The frameworks are installed."""
    subprocess.run([GET, DIRECTORY], check=True, timeout=500, stdin=subprocess.DEVNULL)


def report_of(e2b: E2bClients, environment: str, program: str) -> Any:
    """Run a program with the Python of an environment."""
    return e2b.run([DIRECTORY / environment / "bin/python", PROGRAMS / program])


@pytest.mark.usefixtures("frameworks")
def test_smolagents(e2b: E2bClients) -> None:
    """smolagents' CodeAgent with executor_type="e2b" runs its cells, sees errors and gives its answer."""
    answer, observed, error = report_of(e2b, "others", "use_smolagents.py")
    assert answer == {"x": 43}
    assert "printed 42" in observed and observed.endswith("\n42")
    assert "ZeroDivisionError" in error


@pytest.mark.usefixtures("frameworks")
def test_deepagents(e2b: E2bClients) -> None:
    """A deep agent with langchain-e2b writes, runs, edits, reads, lists and finds files."""
    said, answers = report_of(e2b, "others", "use_deepagents.py")
    assert said == "done"
    _, ran, edited, read, again, listed, found, matches = answers
    assert ran.startswith("42\n/home/user\n")
    assert "Successfully replaced 1" in edited
    assert "print(6 * 8)" in read
    assert again.startswith("48\n") and "3" in again
    assert all("cell.py" in each for each in (listed, found, matches))


@pytest.mark.usefixtures("frameworks")
def test_google_adk(e2b: E2bClients) -> None:
    """An agent of Google's ADK uses E2BEnvironment: commands, files, variables."""
    said, (written, ran, edited, read, missing) = report_of(e2b, "others", "use_google_adk.py")
    assert said == ["done"]
    assert written["status"] == edited["status"] == "ok"
    assert (ran["stdout"], ran["exit_code"]) == ("42\n/home/user\nyes\n", 3)
    assert "print(6 * 8)" in read["content"]
    assert missing["status"] == "error"


@pytest.mark.usefixtures("frameworks")
def test_openai_agents(installed: None) -> None:
    """A SandboxAgent runs commands, also on a terminal; its sandbox is paused at the end, and resumed."""
    # Its client insists on the form of the key.
    with running_broker(TOKEN="e2b_" + "0a" * 20, POOL__MIN_SIZE=1) as broker:
        first, written, second = report_of(_clients(broker), "openai", "use_openai_agents.py")
    assert (first[0], second[0]) == ("done", "done")
    ran, failed, terminal = first[1:]
    assert "42\nyes" in ran and "exited with code 0" in ran
    assert "exited with code 3" in failed
    assert "a terminal" in terminal
    assert written == "print(6 * 7)\n"
    assert "42" in second[1]


def _clients(broker: BrokerProcess) -> E2bClients:
    return E2bClients(broker)
