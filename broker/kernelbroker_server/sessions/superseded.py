"""The end of a broker whose state directory another one has taken."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

logger = logging.getLogger(__name__)

SUPERSEDED_STATUS = 3
"""The exit status of a broker after another one has taken its state directory."""


def end_superseded(path: Path | str) -> None:
    """End the process at once.

    Args:
        path: of the state directory, or the URL of the database.

    An orderly stop would end sandboxes that are another broker's now."""
    logger.critical(
        "%s: another broker has taken over the sessions of this one, which ends. %s",
        "the store" if isinstance(path, str) else path,
        "Its lease had ended before it was renewed"
        if isinstance(path, str)
        else "Give each broker a state_dir of its own (KERNELBROKER_STATE_DIR)",
    )
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(SUPERSEDED_STATUS)
