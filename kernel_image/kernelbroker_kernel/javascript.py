"""JavaScript cells: one Node.js process for the session, with its variables, started by the first.

`javascript.js` runs the cells. It is asked by a line of JSON on one pipe, and answers on another;
what the code prints goes where the kernel's own output goes.
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

from .foreign import ForeignError
from .helper import Helper
from .returns import Summary
from .streams import outputs

_DRIVER = Path(__file__).with_suffix(".js")
_GRACE_S = 0.5
"""How long interrupted code that computes may take to react before Node.js is ended."""
_TELL_S = 0.1
"""How long Node.js may take to tell that nothing computes."""
_MAX_LINE = 16 * 1024**2
_READ_BYTES = 64 * 1024
_LOST = "its variables are lost"


def run(helper: Helper, code: str, name: str | None) -> None:
    """Run the code, and show the value of its last expression. Raises ForeignError for a failure."""
    if helper.node is not None and not helper.node.alive:
        sys.stderr.write(f"Node.js had ended with status {_end(helper)}; {_LOST}\n")
    if helper.node is None:
        helper.node = Node.start()
    node: Node = helper.node
    try:
        answer = node.ask({"code": code, "name": name, "cwd": _cwd(), "env": dict(os.environ)})
    except KeyboardInterrupt:
        stopped = False
        try:
            stopped = node.interrupt()
        finally:
            if not stopped:
                helper.exit_code = _end(helper)
                sys.stderr.write(f"JavaScript did not stop: Node.js was ended, and {_LOST}\n")
        raise
    if answer is None:
        helper.exit_code = _end(helper)
        raise ForeignError(
            "NodeExited",
            f"Node.js ended with status {helper.exit_code}; {_LOST}, and the next "
            "cell starts it anew",
        )
    if error := answer.get("error"):
        raise ForeignError(str(error["name"]), str(error["message"]), str(error["trace"]))
    if name is not None:
        if "named" in answer:
            helper.foreign_names = {name: answer["named"]}
        elif "summary" in answer:
            helper.foreign_names = {name: Summary(answer["summary"])}
    if (shown := answer.get("shown")) is not None:
        shell: Any = get_ipython()
        shell.display_pub.publish({"text/plain": str(shown)})


def _end(helper: Helper) -> int:
    """End what the session has of Node.js; returns the status."""
    node, helper.node = helper.node, None
    status: int = node.end()
    return status


class Node:
    """A Node.js process that runs cells."""

    def __init__(self, process: subprocess.Popen[bytes], asks: int, answers: int) -> None:
        self._process = process
        self._asks = asks
        self._answers = answers
        self._read = b""

    @classmethod
    def start(cls) -> Node:
        """Raises ForeignError where there is no Node.js."""
        program = shutil.which("node")
        if program is None:
            raise ForeignError(
                "LanguageUnavailable",
                "this template has no Node.js; use another one, or Python or shell",
            )
        theirs_in, asks = os.pipe()
        answers, theirs_out = os.pipe()
        try:
            with outputs() as (stdout, stderr):
                process = subprocess.Popen(
                    # For the parser in it; see the driver.
                    [program, "--expose-internals", str(_DRIVER), str(theirs_in), str(theirs_out)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=(theirs_in, theirs_out),
                    process_group=0,
                    stdout=stdout,
                    stderr=stderr,
                )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return cls(process, asks, answers)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Its answer; None where it ended instead. After an interrupt, `interrupt` it or `end` it."""
        line = json.dumps(asked).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._asks, line) :]
            answer = self._line()
        except BrokenPipeError:
            return None
        return None if answer is None else json.loads(answer)

    def interrupt(self) -> bool:
        """Stop the code that runs. False where it does not stop, and what runs has to be ended.

        Code that computes is reached by the signal, which Node.js turns into an exception there. Code
        that awaits is not: whatever it waits for, it would go on some day.
        """
        try:
            os.write(self._asks, b'\n{"interrupt": true}\n')  # what it was to be asked may be torn
            for patience in (_TELL_S, _GRACE_S):
                try:
                    # Until then come whole or torn answers that nobody waits for any more.
                    while (line := self._line(patience)) is not None:
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
        """End it and all that it runs; returns its exit status, as a shell gives it."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        os.close(self._asks)
        os.close(self._answers)
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    def _line(self, patience: float | None = None) -> bytes | None:
        """The next line; None where it ended. Raises TimeoutError after `patience` seconds."""
        while b"\n" not in self._read:
            if not select.select([self._answers], [], [], patience)[0]:
                raise TimeoutError
            data = os.read(self._answers, _READ_BYTES)
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
