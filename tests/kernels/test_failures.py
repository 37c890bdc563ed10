"""Why a cell failed, in plain and bounded text."""

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
    """However codes are nested, none is left and none is formed by taking another out."""
    error = ErrorContent(ename="E", evalue="v", traceback=traceback)
    assert "\x1b" not in traceback_text(error)
    assert "\x1b" not in "".join(failure(error, "error", None).traceback)


def test_colours_go_and_text_stays() -> None:
    """A real traceback reads as it would without colours."""
    lines = ["\x1b[31mZeroDivisionError\x1b[39m", "\x1b[1;32m----> 1\x1b[0m 1/0"]
    error = ErrorContent(ename="ZeroDivisionError", evalue="division by zero", traceback=lines)
    assert traceback_text(error) == "ZeroDivisionError\n----> 1 1/0\n"
    assert failure(error, "error", None).traceback == ["ZeroDivisionError", "----> 1 1/0"]


def test_without_a_traceback() -> None:
    """An error without a traceback still says what it was."""
    assert traceback_text(ErrorContent(ename="E", evalue="v")) == "E: v\n"
    assert failure(ErrorContent(ename="E"), "error", None).traceback == []


@repeatable
@given(tag_text, tag_text, st.sampled_from([None, ("timeout", "too long"), ("interrupted", "hm")]))
def test_one_line(name: str, value: str, interruption: tuple[str, str] | None) -> None:
    """The error in one line is one line, whatever the exception is called and says."""
    detail = failure(ErrorContent(ename=name, evalue=value), "error", interruption)
    line = one_line(detail)
    assert line
    assert len(line.splitlines()) == 1


@pytest.mark.parametrize("interruption", [None, ("interrupted", "interrupted")])
def test_bounds(interruption: tuple[str, str] | None) -> None:
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
        ("error", ("interrupted", "as asked"), "interrupted", "ValueError: as asked"),
        ("aborted", None, "rejected", "Aborted: the kernel skipped the cell"),
    ],
)
def test_causes(status: str, interruption: tuple[str, str] | None, cause: str, line: str) -> None:
    """The cause is what the broker knows of it."""
    detail = failure(ErrorContent(ename="ValueError", evalue="no"), status, interruption)
    assert (detail.cause, one_line(detail)) == (cause, line)
