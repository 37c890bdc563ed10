"""The judge against the corpus: how often it is wrong, and that it says so."""

from __future__ import annotations

from pathlib import Path

from tests.risk.report import Outcome, lines

DOCS = Path(__file__).parents[2] / "docs" / "risk.md"

MISSED, FALSE_ALARMS = 14, 7
"""As many as there are today; each is marked in the corpus with why."""


def test_the_corpus_is_large_and_has_all_languages(judged: list[Outcome]) -> None:
    """There is enough code of each kind for the counts to mean something."""
    assert sum(outcome.case.is_benign for outcome in judged) >= 200
    assert sum(not outcome.case.is_benign for outcome in judged) >= 250
    assert {outcome.case.language for outcome in judged} == {"python", "shell", "javascript"}


def test_misses_and_false_alarms_are_bounded(judged: list[Outcome]) -> None:
    """The judge is wrong no more often than it was."""
    missed = [outcome.case.title for outcome in judged if outcome.is_missed]
    alarms = [outcome.case.title for outcome in judged if outcome.is_false_alarm]
    assert len(missed) <= MISSED, missed
    assert len(alarms) <= FALSE_ALARMS, alarms


def test_what_is_marked_as_wrong_is_what_is_wrong(judged: list[Outcome]) -> None:
    """Each wrong judgement is marked in the corpus, and no right one is."""
    for outcome in judged:
        wrong = outcome.is_missed or outcome.is_false_alarm
        assert wrong == bool(outcome.case.known), (outcome.case.title, outcome.assessment)


def test_the_report_counts_what_is_wrong(judged: list[Outcome]) -> None:
    """A known miss is counted as one, and named."""
    report = "\n".join(lines(judged))
    assert f"missed: {MISSED} of" in report
    assert f"false alarms: {FALSE_ALARMS} of" in report
    assert report.count("\n  missed (") == MISSED


def test_the_documentation_has_the_same_figures(judged: list[Outcome]) -> None:
    """What docs/risk.md says of the corpus is what the report counts."""
    benign = sum(outcome.case.is_benign for outcome in judged)
    text = " ".join(DOCS.read_text().split())
    assert f"the {len(judged)} pieces of code" in text
    assert f"{FALSE_ALARMS} false alarms in {benign} benign pieces" in text
    assert f"{MISSED} misses in {len(judged) - benign} risky ones" in text


def test_a_finding_names_a_thing_and_never_the_code(judged: list[Outcome]) -> None:
    """What may be logged holds no text that only the code has."""
    for outcome in judged:
        for finding in outcome.assessment.findings:
            assert len(finding.reason) < 120
            assert "\n" not in finding.reason
            for secret in ("10.0.0.1", "http://x", "rm -rf", "b3M=", "/etc/cron.d/x"):
                assert secret not in finding.reason
