"""JavaScript cells: one Node.js process for each session, started by the first such cell.

`javascript.js` runs the cells in that process, which keeps their variables. Requests and responses are
lines of JSON on two pipes. What the code prints goes to the kernel's own output.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython

from .errors import CellError
from .hooks import CellHooks
from .interrupts import uninterrupted
from .return_value import Summary
from .streams import outputs

_DRIVER = Path(__file__).with_suffix(".js")
_GRACE_S = 0.5
"""The time that interrupted code has to stop before Node.js is killed."""
_RESPONSE_S = 0.1
"""The time that Node.js has to respond if no code is computing."""
_MAX_LINE = 16 * 1024**2
_READ_BYTES = 64 * 1024
_LOST = "its variables are lost"


def run(hooks: CellHooks, code: str, name: str | None) -> None:
    """Run the code, and show the value of its last expression. Raises CellError if it fails."""
    if hooks.node is not None and not hooks.node.alive:
        sys.stderr.write(f"Node.js had ended with status {_end(hooks)}; {_LOST}\n")
    if hooks.node is None:
        hooks.node = Node.start()
    node: Node = hooks.node
    try:
        response = node.request(
            {"code": code, "name": name, "cwd": _cwd(), "env": dict(os.environ)}
        )
    except KeyboardInterrupt:
        with uninterrupted():
            if not node.interrupt():
                hooks.exit_code = _end(hooks)
                sys.stderr.write(f"JavaScript did not stop: Node.js was ended, and {_LOST}\n")
        raise
    if response is None:
        hooks.exit_code = _end(hooks)
        raise CellError(
            "NodeExited",
            f"Node.js ended with status {hooks.exit_code}; {_LOST}, and the next "
            "cell starts it anew",
        )
    if error := response.get("error"):
        raise CellError(str(error["name"]), str(error["message"]), str(error["trace"]))
    if name is not None:
        if "value" in response:
            hooks.reported_names = {name: response["value"]}
        elif "summary" in response:
            hooks.reported_names = {name: Summary(response["summary"])}
    if (shown := response.get("shown")) is not None:
        shell: Any = get_ipython()
        shell.display_pub.publish({"text/plain": str(shown)})


def _end(hooks: CellHooks) -> int:
    """End the session's Node.js process; returns its status."""
    node, hooks.node = hooks.node, None
    status: int = node.end()
    return status


class Node:
    """A Node.js process that runs cells."""

    def __init__(self, process: subprocess.Popen[bytes], requests: int, responses: int) -> None:
        self._process = process
        self._requests = requests
        self._responses = responses
        self._read = b""

    @classmethod
    def start(cls) -> Node:
        """Raises CellError if there is no Node.js."""
        program = shutil.which("node")
        if program is None:
            raise CellError(
                "LanguageUnavailable",
                "this template has no Node.js; use another one, or Python or shell",
            )
        child_in, requests = os.pipe()
        responses, child_out = os.pipe()
        try:
            with outputs() as (stdout, stderr):
                process = subprocess.Popen(
                    [program, str(_DRIVER), str(child_in), str(child_out)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(child_in, child_out),
                    process_group=0,
                    stdout=stdout,
                    stderr=stderr,
                )
        finally:
            os.close(child_in)
            os.close(child_out)
        return cls(process, requests, responses)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def request(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """The response; None if the process ended. After an interrupt, call `interrupt` or `end`."""
        line = json.dumps(request).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._requests, line) :]
            response = self._line()
        except BrokenPipeError:
            return None
        return None if response is None else json.loads(response)

    def interrupt(self) -> bool:
        """Stop the running code. Returns False if it does not stop; call `end` then.

        The signal becomes an exception in code that computes. Code that awaits does not get it, and would
        continue whenever its promise is settled.
        """
        try:
            os.write(
                self._requests, b'\n{"interrupt": true}\n'
            )  # the request before may have been cut off
            for timeout in (_RESPONSE_S, _GRACE_S):
                try:
                    # Skip responses to earlier requests, complete or cut off.
                    while (line := self._line(timeout)) is not None:
                        if line.endswith(b'{"stopped":true}'):
                            return True
                        if line.endswith(b'{"stopped":false}'):
                            return False
                except TimeoutError:
                    self._process.send_signal(signal.SIGINT)
        except BrokenPipeError:
            pass
        return False

    def end(self) -> int:
        """Kill the process and its children. Returns its exit status, as a shell gives it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        os.close(self._requests)
        os.close(self._responses)
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    def _line(self, timeout: float | None = None) -> bytes | None:
        """The next line; None if the process ended. Raises TimeoutError after `timeout` seconds."""
        while b"\n" not in self._read:
            if not select.select([self._responses], [], [], timeout)[0]:
                raise TimeoutError
            data = os.read(self._responses, _READ_BYTES)
            if not data or len(self._read) > _MAX_LINE:
                return None
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return line


def _cwd() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None
