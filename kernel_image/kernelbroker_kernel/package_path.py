"""The directory of a session's own packages, which is last on the kernel's path."""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig

from .contract import PACKAGES
from .environment import WORKSPACE

PREFIX = f"{WORKSPACE}/{PACKAGES}"
SITE = sysconfig.get_path("purelib", vars={"base": PREFIX})


def add_to_path() -> None:
    """Add the directory to the path, also if it does not exist yet."""
    if SITE not in sys.path:
        sys.path.append(SITE)


def refresh() -> None:
    """Look again for a directory that did not exist: a session's files come after its kernel's start."""
    if sys.path_importer_cache.get(SITE, SITE) is None and os.path.isdir(SITE):  # noqa: PTH112
        importlib.invalidate_caches()
