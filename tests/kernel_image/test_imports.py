"""What the modules of the user's kernel import."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

CODE = """
import json, sys
import kernelbroker_kernel.{module}
print(json.dumps(sorted(sys.modules)))
"""
FOREIGN = {
    "tornado.web",
    "kernel_gateway",
    "jupyter_server",
    "pandas",
    "pyarrow",
    "numpy",
    "polars",
}
"""Libraries of the gateway, and those that only user code imports."""


@pytest.mark.parametrize("module", ["exports", "internal_cells", "report", "hooks"])
def test_the_kernel_loads_neither_the_gateway_nor_libraries(module: str) -> None:
    """The modules that run in the user's kernel import no server, and no library that the user has not."""
    found = subprocess.run(
        [sys.executable, "-c", CODE.format(module=module)],
        capture_output=True,
        check=True,
        text=True,
    )
    assert not FOREIGN & set(json.loads(found.stdout))
