"""Measures the sandboxes' package: `make coverage` puts this module into the site-packages of the jails."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
import time
from typing import Any

import coverage

_measurement = coverage.Coverage(
    data_file="/coverage/.coverage",
    data_suffix=True,
    config_file=False,
    source_pkgs=["kernelbroker_kernel"],
)
_run_forever = asyncio.BaseEventLoop.run_forever
_saved_by = 0
"""The process whose thread saves what was measured."""


def _save() -> None:
    """A sandbox ends by SIGKILL: what was measured is saved again and again."""
    while True:
        time.sleep(0.3)
        with contextlib.suppress(Exception):  # the code of users may close any file
            _measurement.save()


def _save_from_now_on() -> None:
    global _saved_by
    if _saved_by != os.getpid():
        _saved_by = os.getpid()
        threading.Thread(target=_save, daemon=True).start()


def _run_and_save(loop: Any) -> None:
    _save_from_now_on()
    _run_forever(loop)


_measurement.start()
if "kernelbroker_kernel.fork_server" in sys.orig_argv:
    # A process with threads must not fork and cannot enter namespaces. A child of the fork server runs its
    # event loop only after it has done both.
    asyncio.BaseEventLoop.run_forever = _run_and_save  # type: ignore[method-assign]
else:
    _save_from_now_on()
    os.register_at_fork(after_in_child=_save_from_now_on)
