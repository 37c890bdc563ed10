"""Where a session's own packages lie, and that the kernel finds them: last on its path."""

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
    """Let the kernel find what is installed, now or later."""
    if SITE not in sys.path:
        sys.path.append(SITE)


def refresh() -> None:
    """Look again where there was nothing: the files of a session come after its kernel has started."""
    if sys.path_importer_cache.get(SITE, SITE) is None and os.path.isdir(SITE):  # noqa: PTH112
        importlib.invalidate_caches()
