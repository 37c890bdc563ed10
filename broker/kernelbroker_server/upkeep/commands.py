"""`kernelbroker-server backup|restore|support`: the care of a broker in production."""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

from ..config import Settings
from ..config_file import load
from ..doctor.patient import Patient
from ..state_copies import NoCopy
from .backup import Place, write_backup
from .restore import Refused, restore_backup
from .support import write_support_archive
from .trees import Damaged

COMMANDS = ("backup", "restore", "support")
_FAILED = 2


def add_upkeep_commands(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the parser."""
    backup = commands.add_parser("backup", help="save state and workspaces, also while it runs")
    backup.add_argument(
        "target",
        type=Path,
        help="the file to write, compressed if its name ends with .gz or .tgz; or a directory, for a file "
        "named after the time",
    )
    restore = commands.add_parser("restore", help="restore a backup, while no broker runs")
    restore.add_argument("source", type=Path, help="a file written by `backup`")
    restore.add_argument(
        "--replace", action="store_true", help="keep aside what is there, and restore in its place"
    )
    support = commands.add_parser(
        "support", help="collect what helps to find a fault, without secrets, code and output"
    )
    support.add_argument("target", type=Path, help="the archive to write (.tar.gz)")


def upkeep_command(options: argparse.Namespace) -> int:
    """Run a command. Returns the exit status.

    Raises:
        ConfigError, OSError
    """
    logging.disable(logging.CRITICAL)
    try:
        match options.command:
            case "backup":
                _backup(options, _place(load(options.config)))
            case "restore":
                _restore(options, _place(load(options.config)))
            case "support":
                names = write_support_archive(options.target, options.config)
                print(f"{options.target}: {', '.join(names)}. Look at it before you send it")
    except (NoCopy, Refused, Damaged) as exc:
        print(f"kernelbroker-server: {exc}", file=sys.stderr)
        return _FAILED
    return 0


def _place(settings: Settings) -> Place:
    patient = Patient(settings, "")
    return Place(patient.data_dir(patient.backends[0]), patient.state_dir)


def _backup(options: argparse.Namespace, place: Place) -> None:
    written = write_backup(place, options.target)
    print(
        f"{written.path}: the state, {written.workspaces} workspaces, {written.files} files, "
        f"{written.size:,} bytes"
    )
    if written.left_out:
        print(f"{written.left_out} entries could not be read, and are left out", file=sys.stderr)


def _restore(options: argparse.Namespace, place: Place) -> None:
    restored = restore_backup(place, options.source, replace=options.replace)
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(restored.made_at))
    print(
        f"restored {restored.workspaces} workspaces and the state of {made}, of kernelbroker "
        f"{restored.version}"
    )
    for path in restored.aside:
        print(f"kept aside: {path}")
