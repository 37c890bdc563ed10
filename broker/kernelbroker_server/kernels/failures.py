"""The reason of a failed cell, from its kernel's messages, as bounded plain text. No I/O."""

from __future__ import annotations

import re

import msgspec
from kernelbroker.protocol.events import Cause, ErrorDetail

_ERROR_LINE_CHARS = 1000
_ERROR_VALUE_CHARS = 10_000
_TRACEBACK_LINES = 200
_TRACEBACK_CHARS = 100_000

_INTERRUPTED: dict[Cause, str] = {"timeout": "TimeoutError", "quota_exceeded": "QuotaExceeded"}
_INTERRUPT = "KeyboardInterrupt"

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])?")


class ErrorContent(msgspec.Struct):
    """The fields that an `error` message and a failed reply have in common."""

    ename: str = ""
    evalue: str = ""
    traceback: list[str] = []


def failure(
    error: ErrorContent, status: str, interruption: tuple[Cause, str] | None
) -> ErrorDetail:
    """Return the reason of a failed cell whose reply had this status.

    `interruption` is the reason why the cell was interrupted, if it was. It is the cause then, whatever the
    cell made of the interrupt: what it raised instead is in the traceback.
    """
    traceback = _plain_traceback(error)
    ename, evalue = bounded_name_and_value(error)
    if interruption is not None:
        cause, message = interruption
        name = _INTERRUPTED.get(cause, _INTERRUPT)
        return ErrorDetail(name=name, value=message, cause=cause, traceback=traceback)
    if status == "aborted":
        return ErrorDetail(name="Aborted", value="the kernel skipped the cell", cause="rejected")
    return ErrorDetail(
        name=ename or "Error",
        value=evalue,
        cause="exception",
        traceback=traceback,
    )


def bounded_name_and_value(error: ErrorContent) -> tuple[str, str]:
    """The name in one line, since a class can have any name, and the value, both cut."""
    name = " ".join(error.ename.split())[:_ERROR_LINE_CHARS]
    return name, error.evalue[:_ERROR_VALUE_CHARS]


def traceback_text(error: ErrorContent) -> str:
    """Return the traceback as it is shown on standard error."""
    text = _ANSI.sub("", "\n".join(error.traceback)) or f"{error.ename}: {error.evalue}"
    return text if text.endswith("\n") else text + "\n"


def one_line(detail: ErrorDetail) -> str:
    """Return `Name: message`, cut to one line of bounded length."""
    value = detail.value.strip()
    first = value.splitlines()[0] if value else ""
    return (f"{detail.name}: {first}" if first else detail.name)[:_ERROR_LINE_CHARS]


def _plain_traceback(error: ErrorContent) -> list[str]:
    lines = "\n".join(error.traceback)[:_TRACEBACK_CHARS].split("\n")
    return [_ANSI.sub("", line) for line in lines[-_TRACEBACK_LINES:]] if error.traceback else []
