"""`kernelbroker-server doctor`: examines this machine, and prints what it has found."""

from __future__ import annotations

import argparse
import logging
import os
from importlib.metadata import version
from pathlib import Path

from ..config import ConfigError
from ..config_file import load
from .checks import examine
from .findings import Finding, Level, as_json, as_text, error, worst
from .patient import Patient

FAULTS = 1
"""The exit status if there are errors; warnings have 0."""


def add_doctor_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `doctor` to the parser."""
    doctor = commands.add_parser(
        "doctor",
        help="check this machine and the settings, and say what to do",
        description="Check engine, sandboxes, limits, disk, ports, certificates and versions, and say what "
        "to do. Run it as the broker's user with the broker's settings. Exit status: 0 if nothing but "
        "warnings was found, 1 if there are errors.",
    )
    doctor.add_argument("--json", action="store_true", help="print the findings as JSON")


def doctor_command(options: argparse.Namespace) -> int:
    """Run the command. Returns the exit status."""
    logging.disable(logging.CRITICAL)  # the findings say it
    found = examine_settings(options.config)
    print(as_json(found, version("kernelbroker-server")) if options.json else as_text(found))
    return FAULTS if worst(found) is Level.ERROR else 0


def examine_settings(config: Path | None) -> list[Finding]:
    """Examine the machine with the settings of this file and the environment."""
    try:
        settings = load(config)
    except ConfigError as exc:
        return [error("settings", str(exc), "Correct it: docs/configuration.md has all settings")]
    source = str(config or os.environ.get("KERNELBROKER_CONFIG", "the environment"))
    return examine(Patient(settings, source, config))
