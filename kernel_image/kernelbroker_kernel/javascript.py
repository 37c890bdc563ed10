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

_DRIVER = Path(__file__).with_suffix(".js")
_GRACE_S = 0.5
"""How long interrupted code may take to react before Node.js is ended."""
_AWAITING_S = 0.1
"""How long code that awaits may take to be told."""
_MAX_LINE = 16 * 1024**2
_READ_BYTES = 64 * 1024


def run(helper: Helper, code: str, name: str | None) -> None:
    """Run the code, and show the value of its last expression. Raises ForeignError for a failure."""
    if helper.node is None or not helper.node.alive:
        helper.node = Node.start()
    node: Node = helper.node
    answer = node.ask({"code": code, "name": name, "cwd": _cwd(), "env": dict(os.environ)})
    if answer is None:
        helper.node, helper.exit_code = None, node.end()
        raise ForeignError(
            "NodeExited",
            f"Node.js ended with status {helper.exit_code}; its variables are lost, and the next "
            "cell starts it anew",
        )
    if error := answer.get("error"):
        raise ForeignError(str(error["name"]), str(error["message"]), str(error["trace"]))
    if "named" in answer and name is not None:
        helper.foreign_names = {name: answer["named"]}
    if (shown := answer.get("shown")) is not None:
        shell: Any = get_ipython()
        shell.display_pub.publish({"text/plain": str(shown)})


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
            process = subprocess.Popen(
                [program, str(_DRIVER), str(theirs_in), str(theirs_out)],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs_in, theirs_out),
                process_group=0,
            )
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        return cls(process, asks, answers)

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, asked: dict[str, Any]) -> dict[str, Any] | None:
        """Its answer; None where it ended instead. On an interrupt, the code is interrupted."""
        line = json.dumps(asked).encode() + b"\n"
        try:
            while line:
                line = line[os.write(self._asks, line) :]
            return self._answer()
        except BrokenPipeError:
            return None
        except KeyboardInterrupt:
            if not self._interrupt():
                sys.stderr.write("Node.js did not stop and was ended; its variables are lost\n")
            raise

    def end(self) -> int:
        """Its exit status, as a shell gives it."""
        os.close(self._asks)
        os.close(self._answers)
        status = self._process.wait()
        return status if status >= 0 else 128 - status

    def _answer(self, patience: float | None = None) -> dict[str, Any] | None:
        """The next line; None where it ended. Raises TimeoutError after `patience` seconds."""
        while b"\n" not in self._read:
            if not select.select([self._answers], [], [], patience)[0]:
                raise TimeoutError
            data = os.read(self._answers, _READ_BYTES)
            if not data or len(self._read) > _MAX_LINE:
                self._kill()
                return None
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _interrupt(self) -> bool:
        """Leave it without a cell that runs, or ended; tells whether it lives.

        Code that awaits is told by a message; code that computes hears nothing but the signal, which
        Node.js turns into an exception there, and would end by anywhere else.
        """
        os.write(self._asks, b'{"interrupt": true}\n')
        for patience in (_AWAITING_S, _GRACE_S):
            try:
                return self._answer(patience) is not None
            except TimeoutError:
                self._process.send_signal(signal.SIGINT)
        self._kill()
        return False

    def _kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _cwd() -> str | None:
    try:
        return str(Path.cwd())
    except OSError:  # it was removed
        return None
