"""Run notebooks in nbclient on a stock ipykernel, in the kernels' environment.

Reads `{name: [cells]}` as JSON from the first file, writes `{name: [outputs of each cell]}` to the second.
Standard output is no place for it, since the kernels write there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

source, target = map(Path, sys.argv[1:])
results = {}
for name, cells in json.loads(source.read_text()).items():
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    NotebookClient(notebook, allow_errors=True, timeout=60, kernel_name="python3").execute()
    results[name] = [cell.outputs for cell in notebook.cells]
target.write_text(json.dumps(results))
