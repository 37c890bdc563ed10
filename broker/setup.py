"""Makes the site of the documentation when the package is built from the whole tree.

What is built from this directory alone (an image, a copy) takes the site that was made before.
"""

import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SCRIPT = Path(__file__).resolve().parent.parent / "docs" / "build_site.py"
PLACE = Path("kernelbroker_server", "documentation", "site")
SITE = Path(__file__).resolve().parent / PLACE


class BuildWithSite(build_py):
    """Build the package with an up-to-date site."""

    def run(self) -> None:
        if SCRIPT.exists() and find_spec("mkdocs") is not None:
            subprocess.run([sys.executable, SCRIPT], check=True)
        elif not (SITE / "index.html").exists():
            self.warn("the package has no documentation: run `make docs` first")
        if (
            not self.editable_mode
        ):  # an earlier build has left files whose names change with their content
            shutil.rmtree(Path(self.build_lib) / PLACE, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": BuildWithSite})
