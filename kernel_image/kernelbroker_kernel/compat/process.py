"""A `subprocess.Popen` for a child that was forked, not started, for jupyter_client."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from typing import Any

from . import missing

SUPPORTED = not missing(subprocess.Popen, "_execute_child", "_child_created")
"""Whether `ForkedProcess` works with this version of Python."""


class ForkedProcess(subprocess.Popen[bytes]):
    """A child of this process, by its id. It has no pipes."""

    def __init__(self, pid: int, args: Sequence[str]) -> None:
        self._forked = pid
        super().__init__(args)

    def _execute_child(self, *_args: Any, **_kwargs: Any) -> None:
        """Called by `Popen.__init__` to start a child."""
        self.pid = self._forked
        self._child_created = True
