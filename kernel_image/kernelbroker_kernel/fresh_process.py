"""Makes a forked process look like one that was started: what a copy must not share is made anew.

Python itself seeds `random` anew in a child. `uuid`, `secrets` and `ssl` ask the system each time. What
cannot be renewed is described in docs/security.md: the secret of `hash` and the addresses of what was
loaded before the fork.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from .compat.process import renew_interpreter

HomeFiles: TypeAlias = Sequence[tuple[Path, bytes]]
_MAX_HOME_BYTES = 32 * 1024**2


def renew() -> None:
    """Renew the state that processes must not share."""
    gc.enable()
    renew_interpreter()
    modules: Mapping[str, Any] = sys.modules
    if "numpy.random" in modules:
        modules["numpy.random"].seed()
    if "multiprocessing.process" in modules:
        modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


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


def home_files() -> HomeFiles:
    """Read the files that imports have written to the home directory, such as the list of fonts."""
    found, size = [], 0
    for path in sorted(Path.home().rglob("*")):
        if path.is_file() and not path.is_symlink():
            content = path.read_bytes()
            size += len(content)
            if size > _MAX_HOME_BYTES:
                break
            found.append((path, content))
    return found


def write_home(files: HomeFiles) -> None:
    """Write what `home_files` has read, in another home directory at the same path."""
    for path, content in files:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def forget(package: str) -> None:
    """Let the next import of a package load it anew."""
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        del sys.modules[name]


def ignored_signals() -> list[int]:
    """The signals that this process ignores, as a program that it starts would."""
    return [
        int(number)
        for number in signal.valid_signals()
        if signal.getsignal(number) is signal.SIG_IGN
    ]


def ignore_only(signals: Iterable[int]) -> None:
    """Ignore these signals and no others, whatever the server that forked this process ignores."""
    for number in {*ignored_signals()}.difference(signals):
        signal.signal(number, signal.SIG_DFL)
    for number in signals:
        signal.signal(number, signal.SIG_IGN)


def set_environment(variables: Mapping[str, str]) -> None:
    """Make these variables the whole environment."""
    for name in [name for name in os.environ if name not in variables]:
        del os.environ[name]
    os.environ.update(variables)
