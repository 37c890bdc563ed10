"""Makes a forked process look like one that was started: what a copy must not share is made anew.

Python itself seeds `random` anew in a child. `uuid`, `secrets` and `ssl` ask the system each time. What
cannot be renewed is described in docs/security.md: the secret of `hash` and the addresses of what was
loaded before the fork.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any


def renew() -> None:
    """Renew the state that processes must not share."""
    gc.enable()
    modules: Mapping[str, Any] = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)
    if "platform" in modules and hasattr(modules["platform"], "_uname_cache"):
        modules["platform"]._uname_cache = None  # it has the host's name
    for name, now in (("_startTime", time.time), ("_start_time", time.time)):
        if hasattr(logging, name):
            setattr(logging, name, now())


def set_command(argv: Sequence[str], program: str, cwd: str) -> None:
    """Set what a started process would know of its command line and its directory.

    Args:
        argv: the command line with which it would have been started.
        program: the first element of `sys.argv`. The rest are the arguments after the module's name.
    """
    sys.orig_argv = list(argv)
    sys.argv = [program, *argv[argv.index("-m") + 2 :]]
    os.chdir(cwd)
    os.environ["PWD"] = cwd


def set_environment(variables: Mapping[str, str]) -> None:
    """Make these variables the whole environment."""
    for name in [name for name in os.environ if name not in variables]:
        del os.environ[name]
    os.environ.update(variables)
