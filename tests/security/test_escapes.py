"""The table of attempts, each made from a cell of a whole system, on each backend."""

from __future__ import annotations

import pytest

from .attempts import Attempt, all_attempts
from .conftest import Inside

pytestmark = pytest.mark.sandbox


@pytest.mark.parametrize(
    "attempt", all_attempts(), ids=lambda attempt: f"{attempt.group}: {attempt.name}"
)
def test_attempt(kind: str, inside: Inside, attempt: Attempt) -> None:
    """It fails for the reason that the table says, and the sandbox and the broker work on."""
    verdicts = inside.told(attempt.code)
    assert verdicts, "nothing was attempted"
    assert set(verdicts) <= attempt.right(kind)
    assert inside.told("told = 'alive'") == ["alive"]
