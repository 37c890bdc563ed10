"""The checks of the doctor, and their order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from . import access, broker, machine, sandboxes, storage
from .findings import Finding, error
from .patient import Patient

Check: TypeAlias = Callable[[Patient], Sequence[Finding]]

CHECKS: Sequence[Check] = (
    access.settings,
    broker.versions,
    access.tokens,
    access.certificates,
    storage.directories,
    storage.state,
    storage.files,
    machine.ports,
    machine.limits,
    machine.clock,
    broker.health,
    sandboxes.engine,
    sandboxes.sandboxes,
)
"""First what the others depend on. None changes anything that a broker uses."""


def examine(patient: Patient, checks: Sequence[Check] = CHECKS) -> list[Finding]:
    """Run the checks. One that fails is a finding, too."""
    found: list[Finding] = []
    for check in checks:
        try:
            found += check(patient)
        except Exception as exc:  # the others may find the cause
            message = f"this check failed: {type(exc).__name__}: {exc}"
            remedy = "Correct the other findings first; if it stays, report it as a bug"
            found.append(error(check.__name__, message, remedy))
    return _without_repetitions(found)


def _without_repetitions(found: Sequence[Finding]) -> list[Finding]:
    """Leave out what is wrong with the settings if a later check explains it."""
    explained = {each.message for each in found if each.check != "settings"}
    return [each for each in found if each.check != "settings" or each.message not in explained]
