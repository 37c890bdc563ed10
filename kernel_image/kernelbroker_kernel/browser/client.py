"""Asks the browser's process, which it starts if there is none. An interrupt ends the action."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import Refused

SOCKET = "browser.sock"
LOG = "browser.log"
GREETING = b"\n"
"""The process that sends this will get the request, and has done nothing of it yet."""
START_S = 60.0
"""For the process of the browser, not for Chromium."""
ACTION_S = 900.0
"""More than any action may take: its own timeout is the process's work."""
_MAX_ANSWER = 32 * 1024**2
_POLL_S = 0.02


def ask(name: str, parameters: dict[str, Any], *, picture: bool = True) -> dict[str, Any]:
    """Carry out an action.

    Args:
        picture: whether the answer has a picture of the page, whatever the action.

    Returns:
        ``{"result": {...}, "screenshot": {"mime", "data"} | absent}``.

    Raises:
        Refused: it was not carried out.
    """
    request = json.dumps({"name": name, "parameters": parameters, "picture": picture}).encode()
    with _connected(starts=name != "close") as connection:
        connection.settimeout(ACTION_S)
        try:
            connection.sendall(request + b"\n")
            answer = json.loads(_line(connection))
        except (OSError, ValueError) as error:
            raise Refused(
                "crashed", f"the browser's process has ended ({error}); try again"
            ) from error
    if (refused := answer.get("refused")) is not None:
        raise Refused(str(refused["code"]), str(refused["message"]))
    found: dict[str, Any] = answer
    return found


def _directory() -> Path:
    return Path(tempfile.gettempdir())


def _connected(*, starts: bool) -> socket.socket:
    """A connection to the process. Raises Refused if it does not start."""
    path = _directory() / SOCKET
    if (connection := _connect(path)) is not None:
        return connection
    if not starts:
        raise Refused("not_running", "there is no browser to close")
    had_ended = path.exists()
    with suppress(FileNotFoundError):
        path.unlink()
    process = _start(path, had_ended)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if (connection := _connect(path)) is not None:
            return connection
        if process.poll() is not None:
            break
        time.sleep(_POLL_S)
    process.kill()
    raise Refused(
        "browser_unavailable", f"the browser's process does not start: {last_lines(_directory())}"
    )


def _connect(path: Path) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(START_S)
    try:
        connection.connect(str(path))
        if connection.recv(len(GREETING)) == GREETING:
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _start(path: Path, had_ended: bool) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-P", "-m", "kernelbroker_kernel.browser.server", str(path)]
    library = str(Path(__file__).parents[2])  # whatever a cell has made of the environment
    paths = os.pathsep.join(filter(None, (library, os.environ.get("PYTHONPATH"))))
    with (_directory() / LOG).open("wb") as log:
        return subprocess.Popen(
            [*argv, "--after-a-crash"] if had_ended else argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # an interrupt of the cell is none of the browser
        )


def last_lines(directory: Path) -> str:
    """The end of the process's output, in one line."""
    with suppress(OSError):
        lines = (directory / LOG).read_text(errors="replace").strip().splitlines()
        return " | ".join(lines[-3:])[-500:] or "it wrote nothing"
    return "it wrote nothing"


def _line(connection: socket.socket) -> bytes:
    data = bytearray()
    while not data.endswith(b"\n"):
        if not (piece := connection.recv(256 * 1024)):
            raise OSError("it sent no answer")
        data += piece
        if len(data) > _MAX_ANSWER:
            raise OSError("its answer is too large")
    return bytes(data)
