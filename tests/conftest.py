"""For all tests: what a test run must not hide."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.extent import WHOLE, is_thorough
from tests.support.requires import require, table

_DIRECTORY = Path.cwd()
_TESTS = Path(__file__).parent
_SLOWEST_FIRST = ("compose", "backends", "security", "e2e")
"""So that no worker begins a long file when the others are about to end."""
_ALL_SANDBOX = ("chaos", "console", "e2e", "grpc_api", "jupyter")
"""Directories whose tests all start sandboxes. `make test-fast` does not import them."""
_USES_BUNDLE = re.compile("test_dind|test_offline")
"""The tests of the offline archive, which is made once."""
_USES_ENGINE = re.compile("compose|docker|gvisor|podman|engine")
"""The ids of tests that share a container engine, its networks, and its rules for the host."""


@pytest.fixture(scope="module")
def engines_that_are_away() -> Iterator[None]:
    """Collects sockets that docker-py leaves open if no engine listens, so that no later test fails."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's settings of a broker from the environment.

    Those of tests, which were read before, go too: a broker refuses settings that it does not know.
    """
    for name in list(os.environ):
        if name.startswith("KERNELBROKER_"):
            monkeypatch.delenv(name)


def pytest_configure() -> None:
    """The tests and what they start take the signals that a shell or nohup ignores in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGQUIT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    unwanted = "not sandbox" in config.option.markexpr and collection_path.parent == _TESTS
    return True if unwanted and collection_path.name in _ALL_SANDBOX else None


def pytest_itemcollected(item: pytest.Item) -> None:
    if is_thorough(str(item.path.relative_to(_TESTS)), item.nodeid):
        item.add_marker("thorough")


@pytest.hookimpl(trylast=True)  # pytest orders by its own rules first
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """The slowest directories come first, in each of them one kind of sandbox after the other.

    A kind has a broker of its own, which would otherwise be started for each test.
    """

    def rank(item: pytest.Item) -> tuple[int, str]:
        directory = item.path.relative_to(_TESTS).parts[0]
        slowest = [name == directory for name in _SLOWEST_FIRST]
        kind = item.callspec.params.get("kind", "") if hasattr(item, "callspec") else ""
        return [*slowest, True].index(True), str(kind)

    if not WHOLE and (left_out := [each for each in items if each.get_closest_marker("long")]):
        config.hook.pytest_deselected(items=left_out)
        items[:] = [each for each in items if not each.get_closest_marker("long")]
    items.sort(key=rank)


_WITHOUT_CLUSTER = "TEST_WITHOUT_CLUSTER" in os.environ
"""Set by .ci/run where it cannot start a cluster."""
_USES_CLUSTER = re.compile("kubernetes")
"""The ids of tests that share a Kubernetes cluster."""


class ByEngine(LoadScopeScheduling):
    """Gives one worker all tests that share an engine, and the other workers one file after the other."""

    def _split_scope(self, nodeid: str) -> str:
        if _USES_BUNDLE.search(nodeid):
            return "bundle"
        if _USES_CLUSTER.search(nodeid):
            return "cluster"
        return "engines" if _USES_ENGINE.search(nodeid) else nodeid.partition("::")[0]


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return ByEngine(config, log)


@pytest.hookimpl(tryfirst=True)  # before fixtures are made
def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark in item.iter_markers("requires"):
        require(*mark.args)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A run ends with what was not tried here, how many tests that are, and how to get what they need."""
    if lines := list(table(terminalreporter.stats.get("skipped", []))):
        terminalreporter.section("not tried here")
        terminalreporter.line("\n".join(lines))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """No test leaves the process in another directory, which the next one would run in."""
    yield
    directory = Path.cwd()
    os.chdir(_DIRECTORY)
    assert directory == _DIRECTORY


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """In CI a skip counts as a failure: everything is meant to run there that can run."""
    report = yield
    if report.skipped and "no cluster" in str(report.longrepr) and _WITHOUT_CLUSTER:
        return report
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, where nothing may be: {report.longrepr}"
    return report
