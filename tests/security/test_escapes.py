"""The table of attempts, each made from a cell of a complete broker, on each backend."""

from __future__ import annotations

import pytest

from tests.backends.probes import BACKENDS, KUBERNETES, LOCAL_FORK, ON_GVISOR

from .attempts import Attempt, all_attempts, gvisor, kubernetes
from .conftest import Inside

pytestmark = pytest.mark.sandbox


CASES = [
    pytest.param(
        *kind.values,
        attempt,
        marks=[*kind.marks, *[pytest.mark.long] * (kind is KUBERNETES)],
        id=f"{kind.values[0]}, {attempt.group}: {attempt.name}",
    )
    for kind in (*BACKENDS, LOCAL_FORK, ON_GVISOR, KUBERNETES)
    for attempt in all_attempts()
    if kind is not ON_GVISOR or attempt.name not in gvisor.NOT_MADE
    if kind is not KUBERNETES or attempt.name not in kubernetes.NOT_MADE
]


@pytest.mark.parametrize(("kind", "attempt"), CASES, indirect=["kind"], scope="session")
def test_an_attempt_fails_as_expected(kind: str, inside: Inside, attempt: Attempt) -> None:
    """The attempt fails for the listed reason, and the sandbox and the broker continue to work."""
    verdicts = inside.verdicts(attempt.code)
    assert verdicts, "nothing was attempted"
    assert set(verdicts) <= attempt.right(kind), verdicts
    after = inside.verdicts("verdict = 'alive'")
    if after == ["ended"] and "ended" in attempt.right(kind):  # only now
        after = inside.verdicts("verdict = 'alive'")
    assert after == ["alive"]
