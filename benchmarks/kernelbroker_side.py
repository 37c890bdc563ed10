"""A broker with bubblewrap sandboxes for the measurements, removed afterwards."""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from sys import executable

import kernelbroker

ROOT = Path(__file__).parent.parent
KERNEL_PYTHON = ROOT / ".venv-kernel" / "bin" / "python"
START_TIMEOUT_S = 60.0
OPENING_TIMEOUT_S = 300.0
"""Many sessions may wait for their sandboxes at once."""


@asynccontextmanager
async def running_broker(*, warm: int = 1, **settings: str) -> AsyncIterator[kernelbroker.Broker]:
    """Start a broker with warm sandboxes and yield a client; `settings` are environment variables."""
    with scratch_directory() as directory:
        environ = {
            **{name: value for name, value in os.environ.items() if "KERNELBROKER_" not in name},
            "KERNELBROKER_PORT": "0",
            "KERNELBROKER_RUNTIME_FILE": str(directory / "runtime.json"),
            "KERNELBROKER_LOG_LEVEL": "WARNING",
            "KERNELBROKER_LOCAL__KERNEL_PYTHON": str(KERNEL_PYTHON),
            "KERNELBROKER_LOCAL__DATA_DIR": str(directory),
            "KERNELBROKER_LOCAL__RUN_DIR": str(directory),
            "KERNELBROKER_LOCAL__REQUIRE_ISOLATION": "true",
            "KERNELBROKER_POOL__MIN_SIZE": str(warm),
            **settings,
        }
        async with running("-m", "kernelbroker_server", env=environ) as process:
            assert process.stdout is not None
            async with asyncio.timeout(START_TIMEOUT_S):
                while b"isolation" not in (line := await process.stdout.readline()):
                    assert line, "the broker did not start"
            found = json.loads((directory / "runtime.json").read_text())
            async with kernelbroker.connect(
                found["url"], found["token"], timeout=OPENING_TIMEOUT_S
            ) as broker:
                await until_warm(broker, warm)
                yield broker


async def until_warm(broker: kernelbroker.Broker, count: int) -> None:
    """Wait until the pool holds this number of idle sandboxes and launches none."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            status = await broker.pool_status()
            if status["idle_containers"] >= count and not status["starting_containers"]:
                return
            await asyncio.sleep(0.02)


@asynccontextmanager
async def running(
    *argv: str,
    python: str | Path = executable,
    env: dict[str, str],
    stdin: int | None = None,
    stderr: int | None = None,
) -> AsyncIterator[Process]:
    """Run a Python program; terminate it at the end and wait for it."""
    process = await asyncio.create_subprocess_exec(
        python, *argv, env=env, stdin=stdin, stdout=PIPE, stderr=stderr, cwd=ROOT
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.terminate()
        await process.communicate()


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Yield a directory with a short path, which sockets need; remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="kb-", ignore_cleanup_errors=True) as name:
        yield Path(name)
