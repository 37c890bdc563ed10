"""What `run_tests` reads from the reports of go, jest and vitest; recorded from these programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernelbroker_kernel.operations import testing
from kernelbroker_kernel.operations.go_report import GoReport

RECORDED = Path(__file__).with_name("recorded")
ROOT = Path("/workspace/project")


def gathered(records: list[dict[str, Any]]) -> testing.Tests:
    tests = testing.Tests()
    for record in records:
        tests.add(record, ROOT)
    return tests


def of_go(lines: list[bytes]) -> testing.Tests:
    report = GoReport()
    return gathered([record for line in lines if (record := report.read(line)[0]) is not None])


def test_go() -> None:
    """Each failure of go has its file, line, message and output, also in a subtest and after a panic."""
    tests = of_go((RECORDED / "go-1.19.jsonl").read_bytes().splitlines())
    assert tests.counts == {"passed": 1, "failed": 4, "errors": 0, "skipped": 1}
    failures = {each["test"].rpartition(".")[2]: each for each in tests.failures}
    bad = failures["TestBad"]
    assert (bad["file"], bad["line"]) == ("a_test.go", 8)
    assert "got 1, want 2" in bad["message"]
    assert "before" in bad["output"]
    assert failures["TestTable/inner"]["message"] == "inner is wrong"
    assert failures["TestTable/inner"]["line"] == 12
    assert (failures["TestPanics"]["line"], failures["TestPanics"]["file"]) == (14, "a_test.go")
    assert failures["TestPanics"]["message"].startswith("panic: boom")


def test_go_that_does_not_compile() -> None:
    """A package that fails without a failed test is an error with its output."""
    said = b'{"Action":"output","Package":"a","Output":"./a.go:3:2: undefined: x\\n"}'
    tests = of_go([said, b'{"Action":"fail","Package":"a","Elapsed":0}', b"FAIL a [build failed]"])
    assert tests.counts["errors"] == 1
    assert "undefined: x" in tests.failures[0]["message"]


@pytest.mark.parametrize(
    "line", [b"", b"[]", b"null", b"1", b"{", b'{"Action":1}', b"[" * 100_000, b'{"Test":{}}']
)
def test_go_lines_of_user_code(line: bytes) -> None:
    """A line that go has not written is output, or nothing."""
    record, text = GoReport().read(line)
    assert record is None
    assert isinstance(text, str)


@pytest.mark.parametrize("name", ["jest-30.5.json", "vitest-4.1.json"])
def test_jest_and_vitest(name: str) -> None:
    """The reports of both have the same structure here, with the line of the failed expectation."""
    tests = gathered(list(testing.of_jest((RECORDED / name).read_bytes())))
    assert tests.counts == {"passed": 1, "failed": 1, "errors": 0, "skipped": 1}
    [failure] = tests.failures
    assert (failure["test"], failure["file"]) == ("bad", "__tests__/a.test.js")
    assert failure["line"] == 2
    assert "toBe" in failure["message"] or "expected 1 to be 2" in failure["message"]


@pytest.mark.parametrize("document", [b"", b"[]", b"{}", b'{"testResults": [1]}', b"\xff", b"null"])
def test_reports_of_user_code(document: bytes) -> None:
    """A report that is none brings no tests, and no error."""
    assert list(testing.of_jest(document)) == []
