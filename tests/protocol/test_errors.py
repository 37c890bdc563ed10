"""Errors across the wire."""

from __future__ import annotations

import pytest
from kernelbroker.protocol import errors
from kernelbroker.protocol.errors import RequestError, from_code

KNOWN = [
    errors.BadRequest,
    errors.Unauthorized,
    errors.NotFound,
    errors.MethodNotAllowed,
    errors.Conflict,
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
