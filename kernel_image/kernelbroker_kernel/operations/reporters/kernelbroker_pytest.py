"""A plugin of pytest that reports each test. See `reporters`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

_TEXT_CHARS = 8_000
_ROOT = Path.cwd()
"""The project; tests may change to other directories."""


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

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._send({"started": nodeid})

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
        is_subtest = hasattr(report, "context")  # its test is counted as well
        if (report.when == "call" and not is_subtest) or report.outcome != "passed":
            outcome = report.outcome
            if outcome == "failed" and report.when != "call":
                outcome = "error"
            if hasattr(report, "wasxfail"):
                outcome = {"skipped": "xfailed", "passed": "xpassed"}.get(outcome, outcome)
            self._write(report, report.nodeid, outcome)

    def _write(self, report: Any, test: str, outcome: str) -> None:
        record: dict[str, Any] = {"test": test, "outcome": outcome}
        record["seconds"] = round(getattr(report, "duration", 0.0), 4)
        if outcome in ("failed", "error"):
            crash = getattr(report.longrepr, "reprcrash", None)
            text = report.longreprtext
            file, line = _place(report, crash)
            record |= {
                "file": file,
                "line": line,
                "message": (crash.message if crash else text.strip().rpartition("\n")[2])[:2_000],
                "output": "\n".join(filter(None, (text, report.capstdout, report.capstderr)))[
                    :_TEXT_CHARS
                ],
            }
        self._send(record)

    def _send(self, record: dict[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(record).encode() + b"\n")


def _place(report: Any, crash: Any) -> tuple[str, int]:
    """The last line of the project that an error went through; without one, where its test begins."""
    entries = getattr(getattr(report.longrepr, "reprtraceback", None), "reprentries", ())
    found = [(crash.path, crash.lineno)] if crash else []
    for entry in reversed(entries):
        if (location := getattr(entry, "reprfileloc", None)) is not None:
            found.append((location.path, location.lineno))
    for path, line in found:
        if _is_own(str(path)):
            return str(path), int(line)
    file, line, _ = getattr(report, "location", None) or (report.fspath, None, "")
    return str(report.fspath or file), (line or 0) + 1


def _is_own(path: str) -> bool:
    """Whether a file is the project's, and no library that is installed in it."""
    relative = os.path.relpath(_ROOT / path, _ROOT)
    return not relative.startswith("..") and "site-packages" not in Path(relative).parts


def pytest_configure(config: Any) -> None:
    if "KERNELBROKER_REPORT" in os.environ and not hasattr(config, "workerinput"):
        descriptor = int(os.environ.pop("KERNELBROKER_REPORT"))
        config.pluginmanager.register(Reporter(descriptor), "kernelbroker")
