"""The two processes between which a table travels: the kernels' interpreter, and a client's."""

from __future__ import annotations

import pickle
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.support.requires import KERNEL_PYTHON

_HERE = Path(__file__).parent
_KERNEL_PACKAGE = _HERE.parents[2] / "kernel_image"


class _Process:
    def __init__(self, *argv: str | Path) -> None:
        self._process = subprocess.Popen(
            [*map(str, argv)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def __call__(self, *asked: Any) -> dict[str, Any]:
        assert self._process.stdin is not None and self._process.stdout is not None
        pickle.dump(asked, self._process.stdin)
        self._process.stdin.flush()
        answer: dict[str, Any] = pickle.load(self._process.stdout)
        return answer

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        with suppress(BrokenPipeError):  # it has died
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


class TableFailed(AssertionError):
    """The kernel's side or the client's raised something that it must not raise."""


class Tables:
    """Sends tables from one process to another, without a sandbox between them.

    Args:
        fork: whether each table is read in a fresh process.
    """

    def __init__(self, *, fork: bool) -> None:
        self._maker = _Process(KERNEL_PYTHON, _HERE / "table_maker.py", _KERNEL_PACKAGE)
        self._reader = _Process(sys.executable, _HERE / "table_reader.py", *["fork"] * fork)

    def close(self) -> None:
        self._maker.close()
        self._reader.close()

    def made(self, expression: str, format: str, *, lossy: bool = False) -> dict[str, Any]:
        """What the kernel sends: `made`, or the words with which it is `refused`."""
        answer = self._maker(expression, format, lossy)
        if "failed" in answer:
            raise TableFailed(f"{expression} as {format}:\n{answer['failed']}")
        assert not answer.get("warned"), f"{expression} as {format}: {answer['warned']}"
        return answer

    def read(self, job: str, expression: str, *arguments: Any) -> Any:
        """What a job of `table_reader.py` answers."""
        answer = self._reader(job, arguments)
        if "failed" in answer:
            raise TableFailed(f"{expression}:\n{answer['failed']}")
        return answer["made"]

    def compared(self, expression: str, *, lossy: bool = False) -> dict[str, Any]:
        """Where the DataFrame differs at the client: `differences`, and `changes` that are told."""
        answer = self.made(expression, "arrow", lossy=lossy)
        if "refused" in answer:
            return answer
        return self.read("compare", expression, answer["made"], expression)
