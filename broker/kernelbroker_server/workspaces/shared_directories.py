"""The directories of shared data that belong to the layouts. Everything here blocks."""

from __future__ import annotations

import logging
from pathlib import Path

from .directory_plans import SHARED

log = logging.getLogger(__name__)


def make_shared_directories(shared_data: Path) -> None:
    """Make the directories that are missing. The operator puts files there, and sessions read them."""
    for name in SHARED:
        try:
            (shared_data / name).mkdir()
            (shared_data / name).chmod(0o755)  # whatever the umask is
        except FileExistsError:
            pass
        except OSError as error:  # the directory need not be the broker's
            log.info("%s has no directory %s, and it cannot be made: %s", shared_data, name, error)
