"""When the first launches show that a broker cannot work."""

from __future__ import annotations

import pytest
from kernelbroker_server.startup_check import StartupCheck
from kernelbroker_server.telemetry.events import LaunchEnded


@pytest.mark.parametrize(
    ("launches", "failed"),
    [
        ("a b a", False),
        ("a b a b", True),
        ("a a b b", True),
        ("a a a", False),
        ("a b a B b b", False),
        ("A a a b b", False),
        ("c c", False),
    ],
)
def test_launches(launches: str, failed: bool) -> None:
    """The check fails when two launches of every template failed, and none succeeded before.

    Small letters are failures of the template of that name, capital letters successes.
    """
    check = StartupCheck(["a", "b"])
    for letter in launches.split():
        failure = f"no {letter}" if letter.islower() else None
        check.on_event(LaunchEnded(letter.lower(), 1.0, failure))
    assert check.failed.is_set() == failed
    if failed:
        assert "template a: no a; template b: no b" in check.message()
