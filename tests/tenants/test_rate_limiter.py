"""The token bucket."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernelbroker_server.tenants.rate_limiter import RateLimiter


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_burst_of_one_minutes_worth_is_allowed() -> None:
    """After the burst, one is allowed each time a share of the minute has passed."""
    clock = Clock()
    limiter = RateLimiter(3, clock)
    for _ in range(3):
        assert limiter.delay() == 0
        limiter.take()
    assert limiter.delay() == pytest.approx(20)
    clock.now += 15
    assert limiter.delay() == pytest.approx(5)
    clock.now += 5
    assert limiter.delay() == pytest.approx(0)


def test_a_rate_below_one_a_minute_allows_one_at_once() -> None:
    """A rate below one delays the second one, not the first."""
    limiter = RateLimiter(0.5, Clock())
    assert limiter.delay() == 0
    limiter.take()
    assert limiter.delay() == pytest.approx(120)


@given(st.floats(0.1, 1000), st.lists(st.floats(0, 120), max_size=50))
def test_the_rate_is_never_exceeded(rate: float, pauses: list[float]) -> None:
    """No period has more than the burst and what the rate adds."""
    clock = Clock()
    limiter = RateLimiter(rate, clock)
    taken = 0
    for pause in pauses:
        clock.now += pause
        while limiter.delay() == 0:
            limiter.take()
            taken += 1
    assert taken <= max(1.0, rate) + clock.now * rate / 60 + 1e-6
