"""The documentation matches the code."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from kernelbroker_server.api.openapi import methods_of
from kernelbroker_server.api.routes import ROUTES
from kernelbroker_server.config_file import load
from kernelbroker_server.telemetry import metrics

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), ROOT / "benchmarks" / "README.md"]

OPERATIONS = (DOCS / "operations.md").read_text()
AUDIT_LOG = OPERATIONS.partition("## The audit log")[2].partition("\n## ")[0]


def test_configuration_page_is_up_to_date() -> None:
    """The page has every key of the settings, with its default and its description."""
    spec = importlib.util.spec_from_file_location("made", ROOT / "docs" / "make_configuration.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    assert made.page() == made.PAGE.read_text(), "run: make docs"


def test_page_of_licenses_is_complete() -> None:
    """The page has each package of the images and of the console in its version, with a license."""
    spec = importlib.util.spec_from_file_location("licenses", ROOT / "docs" / "make_licenses.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    rows = re.findall(r"^\| (\S+) \| (\S+) \| (.+) \|$", made.PAGE.read_text(), re.MULTILINE)
    wanted = {
        each
        for files in made.IMAGES.values()
        for f in files
        for each in made.requirements(ROOT / f)
    }
    wanted |= {(name, version) for name, version, _ in made.console()}
    shown = {(name, version) for name, version, _ in rows if name not in ("package", "---")}
    assert wanted == shown, "run: make docs"
    assert [row for row in rows if row[2] in ("", "unknown", "None")] == []


def test_shown_settings_are_valid(tmp_path: Path) -> None:
    """The broker accepts every configuration file that a page shows."""
    files = [
        (page.name, text)
        for page in PAGES
        for text in re.findall(r"^```toml\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert {page for page, _ in files} >= {"configuration.md", "network.md", "docker.md", "risk.md"}
    for page, text in files:
        file = tmp_path / page
        file.write_text(text)
        load(file)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_targets(page: Path) -> None:
    """Every file that a page links to exists."""
    links = re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text())
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_anchors_exist(page: Path) -> None:
    """A link to a part of a page names one of its headings, in GitHub's form."""
    for target, anchor in re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text()):
        text = (page.parent / target if target else page).read_text()
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        anchors = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
        assert anchor in anchors, f"{target}#{anchor}"


def test_every_page_is_linked() -> None:
    """Every page is linked by another page."""
    linked = {
        (page.parent / link).resolve()
        for page in PAGES
        for link in re.findall(r"\]\(([^)#\s:]+)", page.read_text())
        if (page.parent / link).resolve() != page
    }
    assert [page for page in DOCS.glob("*.md") if page not in linked] == []


def test_table_of_calls_is_complete() -> None:
    """The table of calls has every method of every route, and no other."""
    calls = {
        f"{method} {path.removeprefix('/api/v1')}"
        for path, handler in ROUTES
        for method in methods_of(handler)
    }
    table = (DOCS / "api.md").read_text().partition("## Calls")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z]+ [^`]+)` \|", table, re.MULTILINE)) == calls


def test_table_of_metrics_is_complete() -> None:
    """The table of metrics has every metric with its labels, and no other."""
    gauges = {name: labels for name, (_, labels) in metrics._GAUGES.items()}
    collectors = metrics.Metrics(dict)._registry._collector_to_names
    named = {
        f"{each._name}_total" if each._type == "counter" else each._name: each._labelnames
        for each in collectors
        if hasattr(each, "_labelnames")
    } | {f"kernelbroker_{name}": labels for name, labels in gauges.items()}
    rows = re.findall(r"^\| `(kernelbroker_\w+)` \| ([^|]+) \|", OPERATIONS, re.MULTILINE)
    assert {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows} == named


def test_table_of_audit_events_is_complete() -> None:
    """The table of the audit log has every event, and no other."""
    server = ROOT / "broker" / "kernelbroker_server"
    sources = "".join(path.read_text() for path in server.rglob("*.py"))
    events = set(re.findall(r'\.record\(\s*"([a-z.]+)"', sources))
    assert events == set(re.findall(r"^\| `([a-z.]+)` \| `", AUDIT_LOG, re.MULTILINE))
