"""Measures the sandboxes' package: `make coverage` puts this module into the site-packages of the jails."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import coverage

_measurement = coverage.Coverage(
    data_file="/coverage/.coverage",
    data_suffix=True,
    config_file=False,
    source_pkgs=["kernelbroker_kernel"],
)


def _save() -> None:
    """A sandbox ends by SIGKILL: what was measured is saved again and again."""
    while True:
        time.sleep(0.3)
        with contextlib.suppress(Exception):  # the code of users may close any file
            _measurement.save()


def _save_in_background() -> None:
    threading.Thread(target=_save, daemon=True).start()


_measurement.start()
_save_in_background()
os.register_at_fork(after_in_child=_save_in_background)
