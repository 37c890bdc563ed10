"""Private names of other packages: all of them exist, and a kernel starts without any of them."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelbroker_kernel import compat
from kernelbroker_kernel.compat import missing, overrides

from tests.support.requires import KERNEL_PYTHON, requires

PACKAGE = Path(compat.__file__).parents[2]


@pytest.fixture(autouse=True)
def _restore_overridden() -> Iterator[None]:
    """Names that a test requests are not in the list of the package's own."""
    before = list(compat.OVERRIDDEN)
    yield
    compat.OVERRIDDEN[:] = before


EVERY_NAME = """
from kernelbroker_kernel import compat, fonts, gateway, kernel
fonts.install()
for owner, names in list(compat.OVERRIDDEN):
    print(owner.__name__, *names)
    assert compat.missing(owner, *names) == []
"""


def run_in_kernel_environment(code: str, directory: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [KERNEL_PYTHON, "-c", code],
        env={**os.environ, "PYTHONPATH": str(PACKAGE), "JUPYTER_RUNTIME_DIR": str(directory)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@requires("the kernels' environment")
def test_every_overridden_name_exists(tmp_path: Path) -> None:
    """The installed versions have all private names that the package builds on."""
    done = run_in_kernel_environment(EVERY_NAME, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "kernelbroker_kernel: " not in done.stderr
    asked = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert {owner for owner, *_ in asked} == {
        "OutStream",
        "ZMQInteractiveShell",
        "IPythonKernel",
        "IPKernelApp",
        "FontManager",
        "Popen",
    }
    assert ("FontManager", "_find_fonts_by_props") in asked


class Stock:
    def __init__(self) -> None:
        self._on_instances = 1

    def _method(self) -> None:
        pass


def test_missing_looks_at_the_class_and_its_methods() -> None:
    """A name exists if it is an attribute of the class, or if a method of the class uses it."""

    class Derived(Stock):
        pass

    for owner in (Stock, Derived):
        assert missing(owner, "_method", "_on_instances", "_gone") == ["_gone"]


def test_a_class_with_a_missing_name_is_replaced_by_its_base(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """If its base lacks a private name, the base is used instead, and the log names it."""

    @overrides(Stock, "_method")
    class Fits(Stock):
        pass

    @overrides(Stock, "_method", "_gone")
    class Unfit(Stock):
        pass

    assert Fits.__name__ == "Fits"
    assert Unfit is Stock
    assert "Unfit is not used: Stock has no _gone" in capfd.readouterr().err


WITHOUT_NAMES = """
import builtins, sys, types
from ipykernel.iostream import OutStream
from ipykernel.zmqshell import ZMQInteractiveShell
from kernelbroker_kernel import compat
compat._uses = lambda owner, name: False
stock = compat.hasattr if hasattr(compat, "hasattr") else hasattr
compat.hasattr = lambda owner, name: not name.startswith("_") and stock(owner, name)
from kernelbroker_kernel import fonts, gateway, kernel
fonts.install()
assert issubclass(kernel.streams.Stream, OutStream)
assert kernel.streams.Stream is kernel.streams.PromptStream
from kernelbroker_kernel.kernel import KernelApp
app = KernelApp.instance()
app.initialize(["--KernelManager.transport=ipc"])
assert not app.shell.run_cell("1 / 0").success
assert app.shell.run_cell("x = 1").success
"""


@pytest.mark.slow
@requires("the kernels' environment")
def test_the_kernel_starts_without_any_private_name(tmp_path: Path) -> None:
    """With other versions, which lack all of the names, a kernel starts and runs cells."""
    done = run_in_kernel_environment(WITHOUT_NAMES, tmp_path)
    assert done.returncode == 0, done.stderr
    for what in (
        "Stream is not used",
        "PromptKernel is not used",
        "BoundedErrorShell is not used",
        "matplotlib is not supported",
    ):
        assert f"kernelbroker_kernel: {what}" in done.stderr


PROMPT = """
from tornado.ioloop import IOLoop
from kernelbroker_kernel.kernel import KernelApp
app = KernelApp.instance()
app.initialize(["--KernelManager.transport=ipc"])
assert app.kernel._execute_sleep == 0
assert not app.kernel._supports_kernel_subshells
assert app.kernel.shell_stream.io_loop is IOLoop.current()
"""


@pytest.mark.slow
@requires("the kernels' environment")
def test_the_kernel_replies_without_detours(tmp_path: Path) -> None:
    """Requests are read in the main thread, and replies are sent without a sleep."""
    done = run_in_kernel_environment(PROMPT, tmp_path)
    assert done.returncode == 0, done.stderr


OTHER_MATPLOTLIB = """
import matplotlib.font_manager
del matplotlib.font_manager.FontEntry
from kernelbroker_kernel import fonts
fonts.install()
"""


@requires("the kernels' environment")
def test_an_error_of_the_fonts_is_logged(tmp_path: Path) -> None:
    """An error while fonts are installed is logged and not raised."""
    done = run_in_kernel_environment(OTHER_MATPLOTLIB, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "some scripts have no font: NameError" in done.stderr


def test_the_packages_with_private_names_have_upper_bounds() -> None:
    """A new major version of what a sandbox needs is tried here first."""
    described = tomllib.loads((PACKAGE / "pyproject.toml").read_text())
    needed = described["project"]["optional-dependencies"]["sandbox"]
    assert len(needed) >= 5
    assert [each for each in needed if not re.fullmatch(r"[\w-]+>=[\d.]+,<\d+", each)] == []
