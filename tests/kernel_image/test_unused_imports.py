"""What gateway and kernel leave out of their start, and user code can still import."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernelbroker_kernel.unused_imports import DEBUGGER, FORMATS, left_out

from tests.support.real_kernel import Kernel
from tests.support.requires import KERNEL_PYTHON, requires

PACKAGE = Path(__file__).parents[2] / "kernel_image"


def test_an_import_fails_in_the_block_only() -> None:
    """A module that is left out cannot be imported in the block, and can after it."""
    sys.modules.pop("colorsys", None)
    with left_out("colorsys", "json"):
        with pytest.raises(ImportError):
            import colorsys
        import json  # it has been imported before

        assert json.loads("1") == 1
    import colorsys

    assert colorsys.rgb_to_hsv(0, 0, 0) == (0, 0, 0)


@requires("the kernels' environment")
def test_the_gateway_leaves_out_formats() -> None:
    """The gateway starts without the modules that check formats of text, and what they import."""
    environ = os.environ | {"PYTHONPATH": str(PACKAGE), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [KERNEL_PYTHON, "-P", "-X", "importtime", "-m", "kernelbroker_kernel", "--help"],
        capture_output=True,
        env=environ,
        text=True,
    )
    assert "--handover" in done.stdout
    imported = set(re.findall(r"\| +(\S+)$", done.stderr, re.MULTILINE))
    assert {"kernelbroker_kernel.gateway", "jsonschema._format"} <= imported
    # An import that fails is listed as well, but not what it would import.
    packages = {name.partition(".")[0] for name in imported if "." in name}
    assert packages & {*FORMATS, "arrow", "lark"} == set()


@pytest.mark.slow
@requires("the kernels' environment")
def test_the_formats_are_still_tried() -> None:
    """jsonschema tries each module that is left out, so that the list has no useless names."""
    find = "import jsonschema._format as found; print(found.__file__)"
    done = subprocess.run([KERNEL_PYTHON, "-c", find], capture_output=True, check=True, text=True)
    source = Path(done.stdout.strip()).read_text()
    for name in FORMATS:
        assert re.search(rf"(import|from) {name}\b", source), name


def test_the_debugger_is_left_out(kernel: Kernel) -> None:
    """The kernel does not load the debugger, and a cell can import it."""
    (name,) = DEBUGGER
    cell = f"import sys; print('{name}' in sys.modules)\nimport {name}; print({name}.__name__)"
    assert kernel.run(cell).text == f"False\n{name}\n"
