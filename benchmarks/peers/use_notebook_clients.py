"""nbclient and autogen's Jupyter executor, which is built on it. Both start stock kernels."""

from __future__ import annotations

import tempfile
from contextlib import AsyncExitStack
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from peers.adapter import Adapter, Outcome
from peers.use_jupyter import START_TIMEOUT_S


class Nbclient(Adapter):
    async def open(self) -> tuple[NotebookClient, AsyncExitStack]:
        client = NotebookClient(nbformat.v4.new_notebook(), kernel_name="python3")
        stack = AsyncExitStack()
        await stack.enter_async_context(client.async_setup_kernel())
        client.startup_timeout = int(START_TIMEOUT_S)
        return client, stack

    async def run(
        self,
        session: tuple[NotebookClient, AsyncExitStack],
        code: str,
        timeout: float | None = None,
    ) -> Outcome:
        client = session[0]
        cell = nbformat.v4.new_code_cell(code)
        client.nb.cells = [cell]
        client.timeout = None if timeout is None else int(timeout)
        outcome = Outcome()
        try:
            await client.async_execute_cell(cell, 0)
        except CellExecutionError as exc:
            outcome.error = f"{exc.ename}: {exc.evalue}"
        for output in cell.outputs:
            outcome.text += output.get("text", "") + output.get("data", {}).get("text/plain", "")
            outcome.images += "image/png" in output.get("data", {})
        return outcome

    async def close(self, session: tuple[NotebookClient, AsyncExitStack]) -> None:
        await session[1].aclose()


class Autogen(Adapter):
    async def open(self) -> Any:
        from autogen_ext.code_executors.jupyter import JupyterCodeExecutor

        executor = JupyterCodeExecutor(output_dir=tempfile.mkdtemp(prefix="kb-"))
        await executor.start()
        return executor

    async def run(self, session: Any, code: str, timeout: float | None = None) -> Outcome:
        from autogen_core import CancellationToken
        from autogen_core.code_executor import CodeBlock

        default, session._timeout = session._timeout, timeout or session._timeout
        try:
            result = await session.execute_code_blocks(
                [CodeBlock(code=code, language="python")], CancellationToken()
            )
        finally:
            session._timeout = default
        error = result.output.strip() or "failed" if result.exit_code else None
        return Outcome(result.output, len(result.output_files), error)

    async def restart(self, session: Any) -> Any:
        await session.restart()
        return session

    async def close(self, session: Any) -> None:
        await session.stop()
