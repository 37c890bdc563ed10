"""What code in a sandbox can observe of its interpreter and of the libraries that are loaded.

The text of this file is executed in a cell. `observe()` returns JSON by field.
"""

# ruff: noqa: PTH111 - it asks the system

from __future__ import annotations

import asyncio
import atexit
import builtins
import decimal
import faulthandler
import gc
import getpass
import importlib.machinery
import locale
import logging
import mimetypes
import multiprocessing
import os
import platform
import signal
import socket
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from typing import Any


def observe() -> dict[str, Any]:
    fields = _settings() | _shell() | _state() | _surroundings() | _libraries()
    return {f"python.{field}": value for field, value in fields.items()}


def _settings() -> dict[str, Any]:
    """How the interpreter was started."""
    return {
        "environ": {
            name: "the gateway's" if value == str(os.getppid()) else value
            for name, value in os.environ.items()
        },
        "path": sys.path,
        "flags": repr(sys.flags),
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "prefixes": [sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix],
        "options": [sys.warnoptions, sys._xoptions, sys.dont_write_bytecode, sys.pycache_prefix],
        "meta path": [getattr(each, "__name__", type(each).__name__) for each in sys.meta_path],
        "path hooks": [each.__qualname__ for each in sys.path_hooks],
        "suffixes": importlib.machinery.all_suffixes(),
        "encodings": [sys.getfilesystemencoding(), sys.getfilesystemencodeerrors()],
        "standard streams": [
            [type(each).__name__, each.encoding, each.errors, each.isatty()]
            for each in (sys.stdin, sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__)
            if each is not None
        ],
        "standard descriptors": [
            each.fileno() for each in (sys.__stdin__, sys.__stdout__, sys.__stderr__) if each
        ],
    }


def _shell() -> dict[str, Any]:
    """IPython, and the module that cells run in."""
    main = sys.modules["__main__"]
    shell: Any = vars(builtins)["get_ipython"]()
    return {
        "main": sorted(name for name in vars(main) if name.startswith("__")),
        "main's names": [main.__name__, repr(main.__spec__), getattr(main, "__file__", None)],
        "main is the shell's": vars(main) is shell.user_ns,
        "builtins": sorted(vars(builtins)),
        "shell": [type(shell).__name__, type(shell).__module__, sorted(shell.user_ns_hidden)],
        "shell's callbacks": {
            name: [call.__qualname__ for call in calls]
            for name, calls in shell.events.callbacks.items()
        },
        "shell's configuration": repr(shell.config),
        "extensions": sorted(shell.extension_manager.loaded),
        "magics": sorted(shell.magics_manager.magics["line"]),
        "hooks": [sys.excepthook.__qualname__, type(sys.displayhook).__name__],
        "event loop": [
            type(asyncio.get_running_loop()).__name__,
            type(asyncio.get_event_loop_policy()).__name__,
        ],
    }


def _state() -> dict[str, Any]:
    """Threads, signals, memory, warnings and logs."""
    loggers = logging.root.manager.loggerDict
    wakeup = signal.set_wakeup_fd(-1)
    signal.set_wakeup_fd(wakeup)
    return {
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "tracing": [sys.gettrace(), sys.getprofile(), tracemalloc.is_tracing()],
        "other hooks": [sys.unraisablehook.__name__, threading.excepthook.__name__],
        "signal handlers": {each.name: repr(signal.getsignal(each)) for each in signal.Signals},
        "signals wake a descriptor": wakeup >= 0,
        "timers": [signal.getitimer(each) for each in (0, 1, 2)],
        "threads": sorted(
            [each.name, each.daemon, type(each).__qualname__] for each in threading.enumerate()
        ),
        "main thread": threading.current_thread() is threading.main_thread(),
        "main thread's id": threading.main_thread().native_id == os.getpid(),
        "collector": [gc.isenabled(), gc.get_threshold(), gc.get_debug(), len(gc.callbacks)],
        "uncollectable": len(gc.garbage),
        "kept from the collector": gc.get_freeze_count() > 0,
        "exit handlers": atexit._ncallbacks(),
        "warnings": sorted(repr(entry) for entry in warnings.filters),
        "root logger": [logging.root.level, [repr(each) for each in logging.root.handlers]],
        "logging": [logging.root.manager.disable, logging.raiseExceptions],
        "loggers": {
            name: [logger.level, [repr(each) for each in logger.handlers], logger.propagate]
            for name, logger in sorted(loggers.items())
            if isinstance(logger, logging.Logger) and (logger.level or _speaks(logger))
        },
        "faulthandler": faulthandler.is_enabled(),
        "multiprocessing": [
            multiprocessing.get_start_method(allow_none=True),
            multiprocessing.current_process().name,
            multiprocessing.parent_process(),
            len(multiprocessing.current_process().authkey),
            multiprocessing.active_children(),
        ],
        "children": _children(),
        "decimal": repr(decimal.getcontext()),
    }


def _speaks(logger: logging.Logger) -> bool:
    """Whether it has a handler that does something."""
    return any(not isinstance(each, logging.NullHandler) for each in logger.handlers)


def _children() -> str:
    try:
        return str(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        return "none"


def _surroundings() -> dict[str, Any]:
    """The machine and the user, as the standard library describes them."""
    return {
        "platform": [platform.platform(), list(platform.uname()), platform.python_build()],
        "host name": [socket.gethostname(), socket.getfqdn(), socket.getdefaulttimeout()],
        "user": [getpass.getuser(), os.path.expanduser("~"), os.cpu_count()],
        "locale": [locale.getlocale(), locale.setlocale(locale.LC_ALL), locale.getencoding()],
        "time zone": [time.tzname, time.timezone, time.daylight],
        "temporary files": [tempfile.tempdir, tempfile.gettempdir(), tempfile.gettempprefix()],
        "mime types": mimetypes.inited,
    }


def _libraries() -> dict[str, Any]:
    import matplotlib
    import numpy
    import pandas
    import pyarrow
    from matplotlib import font_manager

    return {
        "matplotlib": {name: repr(value) for name, value in dict.items(matplotlib.rcParams)},
        "matplotlib's backend": [matplotlib.get_backend(), matplotlib.is_interactive()],
        "matplotlib's directories": [matplotlib.get_configdir(), matplotlib.get_cachedir()],
        "fonts": sorted({entry.fname for entry in font_manager.fontManager.ttflist}),
        "numpy": [repr(numpy.get_printoptions()), numpy.geterr(), numpy.getbufsize()],
        "numpy's generator": type(numpy.random.mtrand._rand._bit_generator).__name__,
        **{
            f"pandas.{name}": repr(pandas.get_option(name))
            for name in pandas.core.config_init.cf._registered_options
        },
        "pyarrow": [pyarrow.cpu_count(), pyarrow.io_thread_count()],
        "pyarrow's memory": pyarrow.default_memory_pool().backend_name,
    }
