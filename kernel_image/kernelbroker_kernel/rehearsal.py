"""Shows an error before there is a session, so that a session's first one is not slower."""

from __future__ import annotations

import importlib
import sys
from typing import Any

_is_done = False


def rehearse() -> None:
    """Show an error as a cell's is shown: it loads modules, and fills caches of theirs and of `inspect`.

    Only once, also if the process was forked from one that has done it.
    """
    global _is_done
    if _is_done:
        return
    _is_done = True
    shell: Any = importlib.import_module("IPython.core.interactiveshell").InteractiveShell
    ultratb: Any = importlib.import_module("IPython.core.ultratb")
    # Like a cell's, its file is none of a module. `inspect` then looks at the files of all modules.
    code = compile("raise LookupError", "/tmp/cell.py", "exec")
    try:
        exec(code, {"__name__": "__main__"})
    except LookupError:
        formatter = ultratb.AutoFormattedTB("Context", theme_name=shell.colors.default_value)
        formatter.structured_traceback(*sys.exc_info())
