"""ipybox: `CodeExecutor`, which starts a tool server and a Jupyter Kernel Gateway for each session."""

from __future__ import annotations

import tempfile
from pathlib import Path

from ipybox import CodeExecutor
from ipybox.code_exec import CodeExecutionChunk, CodeExecutionError, CodeExecutionResult

from peers.adapter import Adapter, Outcome


class Used(Adapter):
    sandbox = False

    async def open(self) -> CodeExecutor:
        images = Path(tempfile.mkdtemp(prefix="kb-"))
        executor = CodeExecutor(images_dir=images, sandbox=self.sandbox, log_level="ERROR")
        await executor.start()
        return executor

    async def run(self, session: CodeExecutor, code: str, timeout: float | None = None) -> Outcome:
        outcome = Outcome()
        try:
            async for item in session.stream(code, timeout=timeout, chunks=True):
                if isinstance(item, CodeExecutionChunk):
                    outcome.see(item.text)
                elif isinstance(item, CodeExecutionResult):
                    outcome.images = len(item.images)
        except CodeExecutionError as exc:
            outcome.error = str(exc)
        except TimeoutError:
            outcome.error = "timeout"
        return outcome

    async def restart(self, session: CodeExecutor) -> CodeExecutor:
        await session.reset()
        return session

    async def close(self, session: CodeExecutor) -> None:
        await session.stop()


class Sandboxed(Used):
    """With Anthropic's sandbox-runtime (npm), as its README offers."""

    sandbox = True
