"""Measures the size of a workspace of this machine; see `kernelbroker_kernel.tree_size`."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from kernelbroker_kernel import tree_size

from .base import UNKNOWN, Usage

log = logging.getLogger(__name__)


class UsageMeter:
    """Measures workspaces in threads, at most `concurrency` at the same time."""

    def __init__(self, concurrency: int = 2) -> None:
        self._turns = asyncio.Semaphore(concurrency)

    async def measure(self, directory: Path, max_files: int) -> Usage:
        """Call `measure` in a thread."""
        async with self._turns:
            return await asyncio.to_thread(measure, directory, max_files)


def measure(directory: Path, max_files: int) -> Usage:
    """Measure a directory; see `tree_size.measure`. Never raises OSError."""
    try:
        return Usage(*tree_size.measure(directory, max_files))
    except OSError as error:
        log.warning("A workspace could not be measured: %s", error)
        return UNKNOWN
