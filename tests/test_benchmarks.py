"""The comparison with other projects runs, and its pages can be written."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support.requires import requires

ROOT = Path(__file__).parent.parent


@pytest.mark.sandbox
@requires("bubblewrap", "the kernels' environment")
def test_comparison_of_two_peers_writes_figures_and_a_plot(tmp_path: Path) -> None:
    """A short run measures raw jupyter_client and kernelbroker, and writes all three files."""
    argv = [sys.executable, str(ROOT / "benchmarks" / "compare_peers.py"), "--rounds", "1"]
    argv += ["--only", "kernelbroker;jupyter_client", "--measures", "one,print,open"]
    argv += ["--sessions", "2", "--no-probes", "--output", str(tmp_path)]
    argv += ["--environments", str(tmp_path / "environments")]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stderr
    peers = json.loads((tmp_path / "peers.json").read_text())["peers"]
    assert [peer["name"] for peer in peers] == ["kernelbroker", "jupyter_client"]
    for peer in peers:
        assert peer["unavailable"] is None and peer["errors"] == {}
        assert set(peer["values"]) == {"one", "print", "open", "first_line"}
        assert peer["throughput"]["2"]["failed"] == 0 and peer["throughput"]["2"]["rate"] > 0
    assert "**kernelbroker**" in (tmp_path / "peers.md").read_text()
    for picture in ("peers.svg", "headline.svg"):
        root = ElementTree.parse(tmp_path / picture).getroot()
        assert "kernelbroker" in "".join(root.itertext())


def test_simulation_is_the_same_each_time() -> None:
    """Two runs of the simulation with one seed print the same figures, with another seed others; a node
    is lost."""

    def simulate(seed: int) -> dict[str, Any]:
        argv = [sys.executable, str(ROOT / "benchmarks" / "simulate.py"), "--json"]
        argv += ["--sessions", "40", "--minutes", "1", "--seed", str(seed)]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        return json.loads(line)

    first = simulate(1)
    assert simulate(1) == first
    assert simulate(2) != first
    assert first["sessions"] == 40 and first["refused"] == 0
    assert first["sandboxes on the lost node"] > 0
    assert 0 < first["lease ms"]["p50"] <= first["lease ms"]["p99"] < 10_000
    assert first["first cell after it ms"]["p99"] > first["cell ms"]["p50"]
    assert first["cost of 1,000 sessions"] > 0
