"""The reason of a failed cell, as bounded plain text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker_server.kernels.failures import ErrorContent, failure, one_line, traceback_text

from tests.support.generated import repeatable, tag_text

ESCAPES = st.lists(
    st.sampled_from(["\x1b", "\x1b[", "\x1b[31m", "[0m", "0;1", "m", "\x1b]0;title\x07", "text\n"]),
    max_size=12,
).map("".join)


@repeatable
@given(st.lists(ESCAPES, max_size=4))
def test_no_escape_sequence_is_left(traceback: list[str]) -> None:
    """No escape sequence is left, and none is formed by removing another."""
    error = ErrorContent(ename="E", evalue="v", traceback=traceback)
    assert "\x1b" not in traceback_text(error)
    assert "\x1b" not in "".join(failure(error, "error", None).traceback)


def test_traceback_without_colours() -> None:
    """A real traceback loses its colours and keeps its text."""
    lines = ["\x1b[31mZeroDivisionError\x1b[39m", "\x1b[1;32m----> 1\x1b[0m 1/0"]
    error = ErrorContent(ename="ZeroDivisionError", evalue="division by zero", traceback=lines)
    assert traceback_text(error) == "ZeroDivisionError\n----> 1 1/0\n"
    assert failure(error, "error", None).traceback == ["ZeroDivisionError", "----> 1 1/0"]


def test_error_without_a_traceback() -> None:
    """An error without a traceback shows its name and value."""
    assert traceback_text(ErrorContent(ename="E", evalue="v")) == "E: v\n"
    assert failure(ErrorContent(ename="E"), "error", None).traceback == []


@repeatable
@given(tag_text, tag_text, st.sampled_from([None, ("timeout", "too long"), ("interrupted", "hm")]))
def test_error_line_is_one_line(
    name: str, value: str, interruption: tuple[str, str] | None
) -> None:
    """The error's line is one line, for any name and value."""
    detail = failure(ErrorContent(ename=name, evalue=value), "error", interruption)
    line = one_line(detail)
    assert line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("interruption", [None, ("interrupted", "interrupted")])
def test_error_is_bounded(interruption: tuple[str, str] | None) -> None:
    """An endless name, value or traceback is cut."""
    error = ErrorContent(ename="N" * 10**6, evalue="v" * 10**6, traceback=["t" * 100] * 10**5)
    detail = failure(error, "error", interruption)
    assert len(detail.name) <= 1000
    assert len(detail.value) <= 10_000
    assert len(detail.traceback) <= 200
    assert sum(map(len, detail.traceback)) <= 100_000
    assert len(one_line(detail)) <= 1000


@pytest.mark.parametrize(
    ("status", "interruption", "cause", "line"),
    [
        ("error", None, "exception", "ValueError: no"),
        ("error", ("timeout", "too long"), "timeout", "TimeoutError: too long"),
        ("error", ("interrupted", "as asked"), "interrupted", "KeyboardInterrupt: as asked"),
        ("ok", ("timeout", "too long"), "timeout", "TimeoutError: too long"),
        ("aborted", None, "rejected", "Aborted: the kernel skipped the cell"),
    ],
)
def test_cause_of_a_failure(
    status: str, interruption: tuple[str, str] | None, cause: str, line: str
) -> None:
    """The cause is the cell's own error, unless it was interrupted."""
    detail = failure(ErrorContent(ename="ValueError", evalue="no"), status, interruption)
    assert (detail.cause, one_line(detail)) == (cause, line)


@pytest.mark.parametrize("ename", ["KeyboardInterrupt", "CancelledError"])
@pytest.mark.parametrize(
    ("interruption", "line"),
    [
        (("timeout", "too long"), "TimeoutError: too long"),
        (("quota_exceeded", "too much"), "QuotaExceeded: too much"),
        (("interrupted", "as asked"), "KeyboardInterrupt: as asked"),
    ],
)
def test_an_interrupt_that_ends_the_cell(
    ename: str, interruption: tuple[str, str], line: str
) -> None:
    """If the interrupt ends the cell, the reason of the interruption is the cause."""
    detail = failure(ErrorContent(ename=ename), "error", interruption)
    assert (detail.cause, one_line(detail)) == (interruption[0], line)
