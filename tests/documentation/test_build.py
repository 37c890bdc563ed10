"""Building the site fails on what its readers would stumble over."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.documentation import ROOT

SOURCES = ["docs", "mkdocs.yml", "CHANGELOG.md", "benchmarks/README.md"]
ICON = "broker/kernelbroker_server/console/static/icon.svg"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the site is made from."""
    for name in [*SOURCES, ICON, "broker/pyproject.toml"]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    (tmp_path / "broker/kernelbroker_server/documentation").mkdir()
    return tmp_path


def build(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    script = [sys.executable, tree / "docs" / "build_site.py", *options]
    return subprocess.run(script, capture_output=True, text=True, check=False)


def test_a_broken_link_and_a_lost_page_fail(tree: Path) -> None:
    """A strict build names a broken link, a place that is not there and a page that `nav` lacks."""
    with (tree / "docs" / "concepts.md").open("a") as page:
        page.write("\n[a](nowhere.md) [b](api.md#not-there) [c](../tests/no_such_test.py)\n")
    (tree / "docs" / "lost.md").write_text("# Lost\n")
    site = tree / "broker/kernelbroker_server/documentation/site"
    done = build(tree, "--strict")
    assert done.returncode == 1
    for fault in ("lost.md", "nowhere.md", "#not-there", "no_such_test.py"):
        assert fault in done.stderr, fault
    assert not site.exists()
    done = build(tree)
    assert (done.returncode, (site / "lost" / "index.html").exists()) == (0, True)
    made = (site / "index.html").stat().st_ino
    assert (build(tree).stdout, (site / "index.html").stat().st_ino) == ("", made)
    assert [path.name for path in (tree / "broker").iterdir() if path.name.startswith(".")] == []
