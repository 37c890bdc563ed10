"""Errors across the wire."""

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
    errors.InternalError,
]


@pytest.mark.parametrize("kind", KNOWN)
def test_known_code(kind: type[RequestError]) -> None:
    """A code gives the very exception that it came from, with all that was told."""
    error = from_code(kind.code, "do this", request_id="r", retry_after=2.5)
    assert type(error) is kind
    assert (str(error), error.message) == ("do this", "do this")
    assert (error.request_id, error.retry_after) == ("r", 2.5)


def test_findings_cross_the_wire() -> None:
    """A refusal for what was found in the code keeps its findings and the way to confirm it."""
    found = Finding(rule="process", level="high", line=1, column=2, reason="os.system runs")
    error = from_code(
        "confirmation_required", "do this", findings=[found], confirmation="t", expires_in=300
    )
    assert (error.findings, error.confirmation, error.expires_in) == ([found], "t", 300)


def test_every_request_error_has_a_code() -> None:
    """No two errors share a code, and none that a broker may raise is missing."""
    kinds = RequestError.__subclasses__()
    assert set(kinds) == set(KNOWN)
    assert len({kind.code for kind in kinds}) == len(kinds)


def test_unknown_code() -> None:
    """A newer broker's code gives a plain RequestError."""
    error = from_code("teapot", "short and stout")
    assert type(error) is RequestError
    assert error.message == "short and stout"
