"""Packages that a session installs, in a directory of its workspace, which outlives its kernel.

The directory is last on the kernel's path, so that nothing in it replaces a package of the image. pip
sees the image's packages and is constrained to their versions. It works on a copy of the directory
(hard links), which replaces the directory at the end, so an incomplete installation changes nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from . import environment
from .environment import WORKSPACE
from .errors import CellError, Interrupted
from .hooks import request_options
from .interrupts import uninterrupted
from .package_path import PREFIX, SITE
from .shell import end

_RUNNER = Path(__file__).with_name("pip_runner.py")
_LINE_CHARS = 1000
_RETRIES = "2"
"""A proxy's refusal is final. pip's default of five retries would take ten seconds."""
_ERROR = re.compile("(?:ERROR: |error: |× )(.+)")
"""The beginning of pip's error lines. Later versions print some errors as a name, then the words."""
_BROKEN = re.compile(r"after connection broken by '(.*)': /")
_REFUSED = re.compile(r"kernelbroker: [^'\"]+")
"""The message of the broker's proxy within pip's own."""


def run() -> None:
    """Entry point of the cell. Raises CellError if pip fails, Interrupted if it is interrupted."""
    options = request_options(get_ipython()).get("install")
    if not isinstance(options, dict):
        raise CellError("Error", "the request has no packages to install")
    try:
        _install(options)
    except KeyboardInterrupt:
        raise Interrupted from None
    finally:
        importlib.invalidate_caches()


def _install(options: dict[str, Any]) -> None:
    prefix = Path(PREFIX)
    prefix.mkdir(exist_ok=True)
    for left in prefix.glob("tmp-*"):  # of a kernel that died during an installation
        shutil.rmtree(left, ignore_errors=True)
    # A wheel can contain this file, and pip would read it as its configuration.
    (prefix / "pip.conf").unlink(missing_ok=True)
    # Not /tmp, which is memory, and small.
    scratch = tempfile.mkdtemp(prefix="tmp-", dir=PREFIX)
    try:
        copy, made = Path(scratch, "copy"), Path(scratch, "made")
        try:
            shutil.copytree(prefix, copy, symlinks=True, ignore=_scratch_of, copy_function=_link)
        except OSError as failed:
            raise CellError("InstallFailed", str(failed)[:_LINE_CHARS]) from None
        made.mkdir()
        constraints = Path(scratch, "constraints.txt")
        constraints.write_text("".join(f"{pin}\n" for pin in _pins()))
        argv = [sys.executable, "-I", str(_RUNNER), *_arguments(options, copy, made, constraints)]
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            # --no-color would keep bold text.
            env={**environment.at_start, **os.environ, "TMPDIR": scratch, "TERM": "dumb"},
            process_group=0,
        )
        try:
            error = _error(process)
            status = process.wait()
        except BaseException:
            end(process)
            raise
        if status:
            raise CellError("InstallFailed", error or f"pip exited with status {status}")
        try:
            _merge(made, copy)
            _put_in_place(copy, prefix, Path(scratch, "replaced"))
        except OSError as failed:
            raise CellError("InstallFailed", str(failed)) from None
    finally:
        with uninterrupted():
            shutil.rmtree(scratch, ignore_errors=True)


def _scratch_of(directory: str, names: list[str]) -> list[str]:
    return [name for name in names if directory == PREFIX and name.startswith("tmp-")]


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # it belongs to another user, or has too many links
        shutil.copy2(source, target)


def _put_in_place(copy: Path, prefix: Path, replaced: Path) -> None:
    """Move all entries of `copy` to `prefix`, and those that they replace to `replaced`.

    An interrupt meanwhile is raised at the end. Raises OSError.
    """
    replaced.mkdir()
    kept = [name for name in os.listdir(prefix) if not name.startswith("tmp-")]  # noqa: PTH208
    gone = set(kept) - set(os.listdir(copy))  # noqa: PTH208
    interrupted = False
    while True:
        try:
            for new in copy.iterdir():
                with contextlib.suppress(FileNotFoundError):
                    (prefix / new.name).rename(replaced / new.name)
                new.rename(prefix / new.name)
            for name in gone:
                with contextlib.suppress(FileNotFoundError):
                    (prefix / name).rename(replaced / name)
            break
        except KeyboardInterrupt:
            interrupted = True
    if interrupted:
        raise KeyboardInterrupt


def _merge(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        there = target / entry.name
        if entry.is_dir() and not entry.is_symlink() and there.is_dir():
            _merge(entry, there)
        else:
            entry.replace(there)


def _arguments(options: dict[str, Any], copy: Path, made: Path, constraints: Path) -> list[str]:
    argv = [
        PREFIX,
        str(copy),
        str(copy / Path(SITE).relative_to(PREFIX)),
        "--isolated",
        "--no-input",
        "--no-color",
        "--disable-pip-version-check",
        "--no-cache-dir",
    ]
    argv += ["install", "--prefix", str(made), "--constraint", str(constraints)]
    argv += ["--only-binary", ":all:", "--progress-bar", "off", "--no-warn-script-location"]
    argv += ["--retries", _RETRIES]
    if certificates := environment.at_start.get("PIP_CERT"):  # --isolated ignores it
        argv += ["--cert", certificates]
    if not options.get("index"):
        argv.append("--no-index")
    elif options.get("index_url"):
        argv += ["--index-url", str(options["index_url"])]
    if wheels := environment.at_start.get("KERNELBROKER_WHEELS"):
        argv += ["--find-links", wheels]
    return [*argv, "--", *map(str, options.get("requirements") or ())]


def _pins() -> list[str]:
    """The image's packages as constraints: the kernel would never import another version."""
    path = [entry for entry in sys.path if entry and not entry.startswith(WORKSPACE)]
    found: dict[str, str] = {}
    for distribution in distributions(path=path):
        name = distribution.metadata["Name"]
        if name and distribution.version:
            found.setdefault(name.lower(), f"{name}=={distribution.version}")
    return sorted(found.values())


def _error(process: subprocess.Popen[str]) -> str:
    """Forward pip's errors to standard error. Returns the last one, with the network's part in it."""
    assert process.stderr is not None
    last = broken = ""
    with process.stderr:
        for line in process.stderr:
            with contextlib.suppress(ValueError):  # the user has closed it
                sys.stderr.write(line)
            if error := _ERROR.match(line):
                last = error[1].strip()[:_LINE_CHARS]
            elif found := _BROKEN.search(line):
                refused = _REFUSED.search(found[1])
                broken = (refused or found)[0 if refused else 1][:_LINE_CHARS]
    return f"{last}; {broken}" if last and broken not in last else last
