"""Makes the site of the documentation when a package is built from the whole tree.

What is built from this directory alone (an image, an unpacked sdist) takes the site that was made before.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import Command, setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

HERE = Path(__file__).resolve().parent
SCRIPT = HERE.parent / "docs" / "build_site.py"
SITE = Path("kernelbroker_server", "documentation", "site")


def make_site(command: Command) -> None:
    """Bring the site up to date, where its sources are."""
    if SCRIPT.exists() and find_spec("material") is not None:
        subprocess.run([sys.executable, SCRIPT], check=True)
    elif not (HERE / SITE / "index.html").exists():
        command.warn("the package has no documentation: run `make docs` first")


class BuildWithSite(build_py):
    def run(self) -> None:
        make_site(self)
        if (
            not self.editable_mode
        ):  # an earlier build has left files whose names change with their content
            shutil.rmtree(Path(self.build_lib) / SITE, ignore_errors=True)
        super().run()


class SourcesWithSite(sdist):
    def run(self) -> None:
        make_site(self)
        super().run()


setup(cmdclass={"build_py": BuildWithSite, "sdist": SourcesWithSite})
