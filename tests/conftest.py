"""For all tests: what a test run must not hide."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def engines_that_are_away() -> Iterator[None]:
    """Collects what docker-py leaves behind where no engine listens, before other tests are blamed."""
    yield
    gc.collect()


@pytest.fixture(autouse=True)
def _no_settings_of_the_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """What somebody set for a broker of their own is not for those of the tests."""
    for name in list(os.environ):
        if name.startswith("KERNELBROKER_") and not name.startswith("KERNELBROKER_TEST_"):
            monkeypatch.delenv(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """In CI a skip counts as a failure: everything is meant to run there."""
    report = yield
    if report.skipped and os.environ.get("CI") and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped, where nothing may be: {report.longrepr}"
    return report
