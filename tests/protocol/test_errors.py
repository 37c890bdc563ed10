"""Errors as JSON and back."""

from __future__ import annotations

import pytest
from kernelbroker.protocol import errors
from kernelbroker.protocol.errors import RequestError, from_code
from kernelbroker.protocol.findings import Finding

KNOWN = [
    errors.BadRequest,
    errors.Unauthorized,
    errors.NotFound,
    errors.MethodNotAllowed,
    errors.Conflict,
    errors.PolicyRefused,
    errors.ConfirmationRequired,
    errors.SessionGone,
    errors.TooLarge,
    errors.TooManyRequests,
    errors.Unavailable,
    errors.Forbidden,
    errors.InternalError,
]


@pytest.mark.parametrize("kind", KNOWN)
def test_a_known_code_gives_the_same_exception(kind: type[RequestError]) -> None:
    """A code gives the exception that it came from, with all its attributes."""
    error = from_code(kind.code, "do this", request_id="r", retry_after=2.5)
    assert type(error) is kind
    assert (str(error), error.message) == ("do this", "do this")
    assert (error.request_id, error.retry_after) == ("r", 2.5)


def test_findings_and_confirmation_are_kept() -> None:
    """A refusal keeps its findings and its confirmation."""
    found = Finding(rule="process", level="high", line=1, column=2, reason="os.system runs")
    error = from_code(
        "confirmation_required", "do this", findings=[found], confirmation="t", expires_in=300
    )
    assert (error.findings, error.confirmation, error.expires_in) == ([found], "t", 300)


def test_every_request_error_has_a_code() -> None:
    """Each error of a broker has its own code."""
    kinds = RequestError.__subclasses__()
    assert set(kinds) == set(KNOWN)
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_an_unknown_code_gives_a_request_error() -> None:
    """An unknown code of a newer broker gives a RequestError."""
    error = from_code("teapot", "short and stout")
    assert type(error) is RequestError
    assert error.message == "short and stout"
