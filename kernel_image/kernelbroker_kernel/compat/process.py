"""Private names of Python's own modules that a forked process needs.

`ForkedProcess` is a `subprocess.Popen` for a child that was forked, not started, for jupyter_client.
"""

from __future__ import annotations

import itertools
import logging
import platform
import subprocess
import threading
import time
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


def renew_interpreter() -> None:
    """Renew what the interpreter remembers of the process that it was forked from."""
    modules: Any = (threading.main_thread(), threading, platform, logging)
    main_thread, threads, host, logs = modules
    if hasattr(main_thread, "_native_id"):  # Python renews it from 3.13 on
        main_thread._native_id = threading.get_native_id()
    if hasattr(threads, "_counter"):
        threads._counter = itertools.count(1).__next__  # the numbers in the names of threads
    if hasattr(host, "_uname_cache"):
        host._uname_cache = None  # it has the host's name
    if hasattr(logs, "_startTime"):
        now = time.time_ns() if isinstance(logs._startTime, int) else time.time()
        logs._startTime = now
