"""Runs a program for an operation: bounded in time and output, and ended with its children."""

from __future__ import annotations

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..errors import Refused
from ..interrupts import uninterrupted

SECONDS = 20.0
"""For a program beside the cells. The broker waits a little longer."""
OUTPUT_BYTES = 4 * 1024**2
ERROR_BYTES = 64 * 1024
_READ_BYTES = 64 * 1024
_INPUT_BYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended.

    Attributes:
        is_cut: its output was larger than was wanted, and it was killed.
    """

    status: int
    stdout: bytes
    stderr: str
    is_cut: bool


def find(name: str) -> str:
    """The path of a program. Raises Refused if the sandbox has none of this name."""
    if (path := shutil.which(name)) is None:
        raise Refused(
            "missing_program",
            f"the sandbox has no {name}: use an image that has it, or install {name} on the host "
            "of local sandboxes",
        )
    return path


def run(
    argv: Sequence[str],
    cwd: Path,
    *,
    env: Mapping[str, str] | None = None,
    data: bytes | None = None,
    enough: Callable[[bytes], bool] | None = None,
    seconds: float = SECONDS,
) -> Ended:
    """Run a program. Raises Refused if it is missing or too slow.

    Args:
        env: variables besides those of this process.
        data: its standard input, written to a file first.
        enough: called with each piece of output; if true, the program is killed.
    """
    program = find(argv[0])
    stdin: int = subprocess.DEVNULL
    if data is not None:
        if len(data) > _INPUT_BYTES:
            raise Refused("too_large", f"more than {_INPUT_BYTES:,} bytes")
        stdin = os.memfd_create("input")
        os.write(stdin, data)
        os.lseek(stdin, 0, os.SEEK_SET)
    try:
        process = subprocess.Popen(
            [program, *argv[1:]],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    finally:
        if data is not None:
            os.close(stdin)
    stdout, stderr, is_cut = bytearray(), bytearray(), False
    deadline = time.monotonic() + seconds
    assert process.stdout is not None and process.stderr is not None
    try:
        with selectors.DefaultSelector() as selector, process.stdout, process.stderr:
            selector.register(process.stdout, selectors.EVENT_READ, stdout)
            selector.register(process.stderr, selectors.EVENT_READ, stderr)
            while selector.get_map() and not is_cut:
                if (left := deadline - time.monotonic()) <= 0:
                    raise Refused("timeout", f"{argv[0]} took longer than {seconds:g} s")
                for key, _ in selector.select(left):
                    piece = os.read(key.fd, _READ_BYTES)
                    if not piece:
                        selector.unregister(key.fileobj)
                    elif key.data is stderr:
                        stderr += piece[: ERROR_BYTES - len(stderr)]
                    else:
                        stdout += piece
                        is_cut = len(stdout) > OUTPUT_BYTES or bool(enough and enough(piece))
        if not is_cut:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    finally:
        with uninterrupted(), suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Ended(process.returncode, bytes(stdout[:OUTPUT_BYTES]), text(stderr), is_cut)


def text(data: bytes | bytearray) -> str:
    """Output as text. Bytes that are not UTF-8 are replaced."""
    return bytes(data).decode(errors="replace")
