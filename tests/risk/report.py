"""Counts the wrong assessments of the corpus: `python -m tests.risk.report`."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kernelbroker.risk import Assessment, Language, Level, assess, at_least

CORPUS = Path(__file__).with_name("corpus.toml")


@dataclass(frozen=True)
class Case:
    code: str
    language: Language = "python"
    min: Level = "safe"
    max: Level = "critical"
    known: str = ""

    @property
    def is_benign(self) -> bool:
        return self.min == "safe"

    @property
    def title(self) -> str:
        return f"{self.language}: {' '.join(self.code.split())[:70]}"


@dataclass(frozen=True)
class Outcome:
    case: Case
    assessment: Assessment

    @property
    def is_missed(self) -> bool:
        return not at_least(self.assessment.level, self.case.min)

    @property
    def is_false_alarm(self) -> bool:
        return not at_least(self.case.max, self.assessment.level)


def cases() -> list[Case]:
    return [Case(**case) for case in tomllib.loads(CORPUS.read_text())["case"]]


def outcomes() -> list[Outcome]:
    return [Outcome(case, assess(case.code, case.language)) for case in cases()]


def lines(found: list[Outcome]) -> Iterator[str]:
    """The counts, and each wrong case."""
    benign = [outcome for outcome in found if outcome.case.is_benign]
    risky = [outcome for outcome in found if not outcome.case.is_benign]
    missed = [outcome for outcome in found if outcome.is_missed]
    alarms = [outcome for outcome in found if outcome.is_false_alarm]
    yield f"risk corpus: {len(benign)} benign and {len(risky)} risky pieces of code"
    yield f"  false alarms: {len(alarms)} of {len(benign)}; missed: {len(missed)} of {len(risky)}"
    for kind, wrong in (("false alarm", alarms), ("missed", missed)):
        for outcome in wrong:
            why = outcome.case.known or "not marked"
            yield f"  {kind} ({outcome.assessment.level}) {outcome.case.title} [{why}]"


if __name__ == "__main__":
    sys.stdout.write("\n".join(lines(outcomes())) + "\n")
