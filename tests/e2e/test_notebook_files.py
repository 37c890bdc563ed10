"""Notebook files on real kernels: `kernelbroker exec` gives the outputs of nbclient."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

from tests.e2e.support import KERNEL_PYTHON, BrokerProcess, whole_system

pytestmark = whole_system

CELLS = [
    "print('a')\nprint('b')",
    "import pandas\npandas.DataFrame({'a': [1, 2]})",
    "import matplotlib.pyplot as plt\n_ = plt.plot([1, 2])",
    "from IPython.display import HTML, display\ndisplay(HTML('<i>x</i>'))\n6 * 7",
    "1 / 0",
]
NBCLIENT = """
import sys
import nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
NotebookClient(notebook, timeout=60).execute()
nbformat.write(notebook, sys.argv[1])
"""


def comparable(output: dict[str, Any]) -> dict[str, Any]:
    """An output without what may differ: the colours and frames of tracebacks, the bytes of pictures."""
    found = {name: value for name, value in output.items() if name != "traceback"}
    if "image/png" in found.get("data", {}):
        found["data"] = {**found["data"], "image/png": "a picture"}
    return json.loads(json.dumps(found))


def test_the_outputs_are_those_of_nbclient(broker: BrokerProcess, tmp_path: Path) -> None:
    """A notebook that `kernelbroker exec` has run is valid, and has the outputs of nbclient."""
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS)))
    notebook.cells[-1].metadata.tags = ["raises-exception"]
    ours, theirs = tmp_path / "ours.ipynb", tmp_path / "theirs.ipynb"
    for path in (ours, theirs):
        nbformat.write(notebook, path)
    cli = [sys.executable, "-m", "kernelbroker.cli", "exec", str(ours)]
    done = subprocess.run(cli, env=broker.client_environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    subprocess.run([KERNEL_PYTHON, "-c", NBCLIENT, theirs], check=True, capture_output=True)
    found, expected = (nbformat.read(path, as_version=4) for path in (ours, theirs))
    nbformat.validate(found)
    for cell, other in zip(found.cells, expected.cells, strict=True):
        assert cell.execution_count == other.execution_count
        assert list(map(comparable, cell.outputs)) == list(map(comparable, other.outputs))
    assert found.cells[4].outputs[0].traceback[-1] == "ZeroDivisionError: division by zero"
