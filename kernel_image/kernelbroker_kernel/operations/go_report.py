"""Reads the report of `go test -json`."""

from __future__ import annotations

import json
import re
from typing import Any

_MAX_TESTS = 10_000
_MAX_OUTPUT = 8_000
_OUTCOMES = {"pass": "passed", "fail": "failed", "skip": "skipped"}
_PLACE = re.compile(r"^\s+(?:\S*/)?([\w.-]+_test\.go):(\d+)(?:: (.*)|\s)", re.MULTILINE)
"""`    a_test.go:8: got 1`, or in the stack of a panic `\t/src/a_test.go:14 +0x27`."""
_PANIC = re.compile(r"^panic: (.*)$", re.MULTILINE)
_NOISE = ("=== ", "--- ")


class GoReport:
    """Gathers the output of each test, which tells where and why it failed."""

    def __init__(self) -> None:
        self._output: dict[str, str] = {}
        self._failed: set[str] = set()

    def read(self, line: bytes) -> tuple[dict[str, Any] | None, str]:
        """The record and the output in a line."""
        try:
            item = json.loads(line)
        except (ValueError, RecursionError):
            return None, line.decode(errors="replace") + "\n"
        if not isinstance(item, dict):
            return None, ""
        action, test, package = item.get("Action"), item.get("Test"), str(item.get("Package", ""))
        name = package if test is None else f"{package}.{test}"
        if action == "output":
            text = str(item.get("Output", ""))
            if len(self._output) < _MAX_TESTS and not text.lstrip().startswith(_NOISE):
                self._output[name] = (self._output.get(name, "") + text)[:_MAX_OUTPUT]
            return None, text
        outcome = _OUTCOMES.get(str(action))
        if outcome is None:
            return None, ""
        output = self._output.pop(name, "")
        if test is None:
            return (self._of_package(package, output) if outcome == "failed" else None), ""
        record = {"test": name, "outcome": outcome, "seconds": item.get("Elapsed", 0)}
        if outcome == "failed":
            self._failed.add(package)
            record |= {**_place(output), "output": output}
            record.setdefault("message", f"{test} failed")
        return record, ""

    def _of_package(self, package: str, output: str) -> dict[str, Any] | None:
        """A package that fails without a failed test does not compile, or ended early."""
        if package in self._failed:
            return None
        message = output.strip() or "it failed before any test"
        return {"test": package, "outcome": "error", "message": message, "output": output}


def _place(output: str) -> dict[str, Any]:
    found, panic = _PLACE.search(output), _PANIC.search(output)
    place: dict[str, Any] = {}
    if found is not None:
        place = {"file": found[1], "line": int(found[2])}
    if panic is not None:
        place["message"] = f"panic: {panic[1]}"
    elif found is not None and found[3]:
        errors = [each[3] for each in _PLACE.finditer(output) if each[3]]
        place["message"] = "\n".join(errors)
        last = [each for each in _PLACE.finditer(output) if each[3]][-1]
        place |= {"file": last[1], "line": int(last[2])}
    return place
