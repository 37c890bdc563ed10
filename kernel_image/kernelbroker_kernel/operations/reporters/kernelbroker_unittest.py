"""Runs unittest in the current directory, and reports each test. See `reporters`."""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
import unittest
from pathlib import Path
from typing import Any

_TEXT_CHARS = 8_000


class Result(unittest.TextTestResult):  # type: ignore[type-arg,unused-ignore]
    report = -1

    def startTest(self, test: unittest.TestCase) -> None:  # noqa: N802
        self._started_at = time.monotonic()
        os.write(self.report, json.dumps({"started": test.id()}).encode() + b"\n")
        super().startTest(test)

    def addSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addSuccess(test)
        self._write(test, "passed")

    def addExpectedFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addExpectedFailure(test, err)
        self._write(test, "xfailed")

    def addUnexpectedSuccess(self, test: unittest.TestCase) -> None:  # noqa: N802
        super().addUnexpectedSuccess(test)
        self._write(test, "failed")

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:  # noqa: N802
        super().addSkip(test, reason)
        self._write(test, "skipped")

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addFailure(test, err)
        self._write(test, "failed", err)

    def addError(self, test: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addError(test, err)
        self._write(test, "error", err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:  # noqa: N802
        super().addSubTest(test, subtest, err)
        if err is not None:
            failed = issubclass(err[0], test.failureException)
            self._write(subtest, "failed" if failed else "error", err)

    def _write(self, test: unittest.TestCase, outcome: str, err: Any = None) -> None:
        seconds = time.monotonic() - getattr(self, "_started_at", time.monotonic())
        record: dict[str, Any] = {
            "test": test.id(),
            "outcome": outcome,
            "seconds": round(seconds, 4),
        }
        if err is not None:
            frames = traceback.extract_tb(err[2])
            own = [
                each for each in frames if Path(each.filename).is_relative_to(Path.cwd())
            ] or frames
            text = "".join(traceback.format_exception(*err))
            record |= {
                "file": own[-1].filename if own else "",
                "line": own[-1].lineno if own else 0,
                "message": f"{err[0].__name__}: {err[1]}"[:2_000],
                "output": text[-_TEXT_CHARS:],
            }
        os.write(self.report, json.dumps(record).encode() + b"\n")


def main() -> None:
    Result.report = int(os.environ.pop("KERNELBROKER_REPORT"))
    os.set_inheritable(Result.report, False)
    sys.path[0] = str(Path.cwd())
    loader = unittest.TestLoader()
    target = sys.argv[1] if len(sys.argv) > 1 else "."
    if Path(target).is_dir():
        suite = loader.discover(target, top_level_dir="." if target == "." else None)
    elif target.endswith(".py"):
        suite = loader.discover(str(Path(target).parent), pattern=Path(target).name)
    else:
        suite = loader.loadTestsFromName(target)
    made: Any = Result
    result = unittest.TextTestRunner(resultclass=made, verbosity=2).run(suite)
    os.write(Result.report, b'{"finished": true}\n')
    sys.exit(not result.wasSuccessful())


if __name__ == "__main__":
    main()
