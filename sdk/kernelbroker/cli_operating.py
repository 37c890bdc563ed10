"""The commands for the broker's own machine, which the broker's package carries out."""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
from collections.abc import Sequence

from .protocol.errors import KernelBrokerError

_SERVER = "kernelbroker_server"
COMMANDS = {
    "doctor": "check the broker's machine and settings, and say what to do",
    "backup": "save the broker's state and workspaces, also while it runs",
    "restore": "restore a backup, while no broker runs",
    "support": "collect what helps to find a fault into an archive, without secrets",
}


class NotInstalled(KernelBrokerError):
    """A package that the command needs is not installed beside the SDK."""


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the parser, for its help. Their arguments are those of `kernelbroker-server`."""
    for name, summary in COMMANDS.items():
        commands.add_parser(name, help=f"{summary} (`kernelbroker {name} --help`)", add_help=False)


def run(command: str, arguments: Sequence[str]) -> int:
    """Run a command of `kernelbroker-server` in this environment. Returns its exit status.

    Raises:
        NotInstalled
    """
    if importlib.util.find_spec(_SERVER) is None:
        raise NotInstalled(
            f"`kernelbroker {command}` runs on the broker's machine, in the environment of "
            "kernelbroker-server"
        )
    return subprocess.run(
        [sys.executable, "-m", _SERVER, command, *arguments], check=False
    ).returncode
