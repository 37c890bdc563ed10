"""The assessments of the corpus: the number of wrong ones, and their documentation."""

from __future__ import annotations

from pathlib import Path

from tests.risk.report import Outcome, lines

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs" / "risk.md"
MAX_LINES = 2000
"""Of the package, tables included."""


def test_every_wrong_assessment_is_marked_and_no_right_one(assessed: list[Outcome]) -> None:
    """A case has a `known` reason exactly where its assessment is wrong."""
    for outcome in assessed:
        wrong = outcome.is_missed or outcome.is_false_alarm
        assert wrong == bool(outcome.case.known), (outcome.case.title, outcome.assessment)


def test_the_report_counts_and_names_what_is_wrong(assessed: list[Outcome]) -> None:
    """The report has a line for each miss and each false alarm."""
    missed = sum(outcome.is_missed for outcome in assessed)
    alarms = sum(outcome.is_false_alarm for outcome in assessed)
    report = "\n".join(lines(assessed))
    assert 0 < missed == report.count("\n  missed (")
    assert 0 < alarms == report.count("\n  false alarm (")
    assert f"missed: {missed} of" in report


def test_the_documentation_has_the_counts_of_the_corpus(assessed: list[Outcome]) -> None:
    """docs/risk.md quotes what the report counts."""
    benign = sum(outcome.case.is_benign for outcome in assessed)
    missed = sum(outcome.is_missed for outcome in assessed)
    alarms = sum(outcome.is_false_alarm for outcome in assessed)
    text = " ".join(DOCS.read_text().split())
    assert f"the {len(assessed)} pieces of code" in text
    assert f"{alarms} false alarms in {benign} benign pieces" in text
    assert f"{missed} misses in {len(assessed) - benign} risky ones" in text


def test_a_reason_never_quotes_the_code(assessed: list[Outcome]) -> None:
    """A finding may be logged, so it does not contain text of the code."""
    findings = [finding for outcome in assessed for finding in outcome.assessment.findings]
    assert len(findings) > 100
    for finding in findings:
        assert len(finding.reason) < 120
        assert finding.reason.isprintable()
        for secret in ("10.0.0.1", "http://x", "rm -rf", "b3M=", "/etc/cron.d/x"):
            assert secret not in finding.reason


def test_the_package_stays_small() -> None:
    """The package has at most 2,000 lines."""
    files = (ROOT / "sdk" / "kernelbroker" / "risk").glob("*.py")
    assert 0 < sum(len(path.read_text().splitlines()) for path in files) <= MAX_LINES
