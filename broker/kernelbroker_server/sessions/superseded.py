"""The end of a broker whose state directory another one has taken."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

SUPERSEDED_STATUS = 3
"""The exit status of a broker after another one has taken its state directory."""


def end_superseded(path: Path) -> None:
    """End the process at once. An orderly stop would end sandboxes that are another broker's now."""
    logger.critical(
        "%s: another broker has taken it over, with its sessions; this broker ends. Give each broker a "
        "state_dir of its own (KERNELBROKER_STATE_DIR)",
        path,
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(SUPERSEDED_STATUS)
