"""A worker process as the runner sees it: commands with deadlines, and its end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from pathlib import Path
from typing import Any

from peers.environments import Peer
from peers.probes import SECRET_VARIABLE

WORKER = Path(__file__).with_name("worker.py")
STOP_TIMEOUT_S = 20.0
ANSWER_LIMIT = 2**24


class WorkerError(Exception):
    """A command failed; the message is for the table of results."""


class WorkerLostError(WorkerError):
    """The worker ended or did not answer in time, and was removed."""


class Worker:
    """Start with `open`, and remove with `close`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @classmethod
    async def open(cls, peer: Peer, python: Path, directory: Path, *, cold: bool = False) -> Worker:
        """Start a worker in the scratch directory, with a secret in its environment, and its adapter."""
        tools = [python.parent, directory / "npm" / "node_modules" / ".bin"]
        environ = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTHON")},
            "PATH": ":".join([*map(str, tools), os.environ["PATH"]]),
            SECRET_VARIABLE: secrets.token_hex(16),
            "IPYTHONDIR": str(directory / "ipython"),
        }
        scratch = directory / "scratch"
        scratch.mkdir(parents=True, exist_ok=True)
        process = await asyncio.create_subprocess_exec(
            *map(str, (python, WORKER, peer.adapter)),
            *(["--cold"] if cold else []),
            env=environ,
            cwd=scratch,
            stdin=PIPE,
            stdout=PIPE,
            stderr=None if os.environ.get("BENCHMARK_DEBUG") else DEVNULL,
            start_new_session=True,
            limit=ANSWER_LIMIT,
        )
        worker = cls(process)
        try:
            await worker.ask({"do": "start"}, 120)
        except BaseException:
            await worker.close()
            raise
        return worker

    async def ask(self, command: dict[str, Any], deadline_s: float) -> Any:
        """Send a command and return its answer.

        Raises:
            WorkerError: the command failed; the worker is ready for the next one.
            WorkerLostError: the worker is gone.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            async with asyncio.timeout(deadline_s):
                self._process.stdin.write(json.dumps(command).encode() + b"\n")
                await self._process.stdin.drain()
                line = await self._process.stdout.readline()
        except TimeoutError:
            await self._kill()
            raise WorkerLostError(f"no answer in {deadline_s:.0f} s") from None
        except OSError:
            line = b""
        if not line:
            await self._kill()
            raise WorkerLostError("it ended the process that uses its client")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(answer["error"])
        return answer["ok"]

    async def close(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(WorkerError):
                await self.ask({"do": "stop"}, STOP_TIMEOUT_S)
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            await self._kill()

    async def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()
