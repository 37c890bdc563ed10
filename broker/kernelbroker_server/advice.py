"""Commands in messages, as they can be typed: with the programs, files and users of this machine.

In a message, commands stand between backquotes.
"""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path


def command(*words: object) -> str:
    """A command of these words, between backquotes."""
    return f"`{shlex.join(map(str, words))}`"


def server(config: Path | None, *words: str) -> str:
    """A command of the broker's own program, with the configuration file that it was examined with."""
    named = () if config is None else ("--config", config)
    return command(sys.executable, "-m", "kernelbroker_server", *named, *words)


def sdk(*words: str) -> str:
    """A command of the SDK's program."""
    return command(sys.executable, "-m", "kernelbroker.cli", *words)


def as_root(*words: object) -> str:
    """A command that only root may run."""
    return command(*(() if os.geteuid() == 0 else ("sudo",)), *words)


def install_extra(name: str) -> str:
    """A command that installs the packages of an extra of `kernelbroker-server`."""
    return install(f"kernelbroker-server[{name}]")


def install(*requirements: object, python: Path | str = sys.executable) -> str:
    """A command that installs packages into an environment."""
    return command(python, "-m", "pip", "install", *requirements)
