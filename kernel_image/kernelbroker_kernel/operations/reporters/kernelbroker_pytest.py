"""A plugin of pytest that reports each test. See `reporters`."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

_TEXT_CHARS = 8_000


class Reporter:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_inheritable(descriptor, False)
        self._found = self._ended = 0

    @pytest.hookimpl(tryfirst=True)  # before others can take some away
    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        self._found = len(items)

    def pytest_deselected(self, items: list[Any]) -> None:
        self._found -= len(items)

    def pytest_runtest_logfinish(self) -> None:
        self._ended += 1

    def pytest_sessionfinish(self, session: Any) -> None:
        """Say whether all tests have been run. It is not called if the process exits before.

        A project may take some of its tests away, as a `conftest.py` does for slow ones, but not all.
        """
        chosen = len(getattr(session, "items", ()))
        finished = self._ended >= chosen and (self._ended > 0 or self._found == 0)
        self._send({"finished": finished})

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write(report, report.nodeid, "error")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            outcome = report.outcome
            if outcome == "failed" and report.when != "call":
                outcome = "error"
            self._write(report, report.nodeid, outcome)

    def _write(self, report: Any, test: str, outcome: str) -> None:
        record: dict[str, Any] = {"test": test, "outcome": outcome}
        record["seconds"] = round(getattr(report, "duration", 0.0), 4)
        if outcome in ("failed", "error"):
            crash = getattr(report.longrepr, "reprcrash", None)
            text = report.longreprtext
            location = getattr(report, "location", None) or ("", None, "")
            record |= {
                "file": crash.path if crash else report.fspath or location[0],
                "line": crash.lineno if crash else (location[1] or 0) + 1,
                "message": (crash.message if crash else text.strip().rpartition("\n")[2])[:2_000],
                "output": "\n".join(filter(None, (text, report.capstdout, report.capstderr)))[
                    :_TEXT_CHARS
                ],
            }
        self._send(record)

    def _send(self, record: dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(record).encode() + b"\n")


def pytest_configure(config: Any) -> None:
    if "KERNELBROKER_REPORT" in os.environ and not hasattr(config, "workerinput"):
        descriptor = int(os.environ.pop("KERNELBROKER_REPORT"))
        config.pluginmanager.register(Reporter(descriptor), "kernelbroker")
