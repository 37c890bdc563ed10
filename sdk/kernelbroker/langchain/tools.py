"""LangChain tools that run code and treat files in a sandbox."""

from __future__ import annotations

import base64
import json
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

from langchain_core.runnables import RunnableConfig
from langchain_core.tools import StructuredTool
from pydantic import BaseModel, Field

from ..client import Broker
from ..protocol.errors import KernelBrokerError
from ..results import ExecutionResult
from ..session import Session
from .sessions import SessionChoice, chosen_id, opened, run_sync

MAX_FILE_CHARS = 20_000
MAX_IMAGE_BYTES = 4 * 2**20
"""Of all pictures of one answer."""
MAX_LISTED = 500

Answered: TypeAlias = tuple[str, list[dict[str, Any]]]
_Work: TypeAlias = Callable[[Session], Awaitable[Answered]]


class ExecutePython(BaseModel):
    code: str = Field(description="One cell. The value of its last expression is shown.")
    timeout: float | None = Field(
        default=None, gt=0, description="Seconds after which it is interrupted."
    )


class InstallPackages(BaseModel):
    packages: list[str] = Field(min_length=1, description="Names, as pip takes them.")


class ListFiles(BaseModel):
    path: str = Field(default=".", description="A directory below /data.")


class ReadFile(BaseModel):
    path: str = Field(description="A text file below /data.")


class WriteFile(BaseModel):
    path: str = Field(description="A file below /data; it is created or replaced.")
    content: str


def create_sandbox_tools(broker: Broker, session: SessionChoice = None) -> list[StructuredTool]:
    """Return the tools `execute_python`, `install_packages`, `list_files`, `read_file`, `write_file`.

    Each answers with the JSON of `{success, output, error, execution_time_ms, artifacts}`. Pictures and
    files that were made are the artifact of the message: dicts with `type` (`image` or `file`).

    Args:
        session: the id of a session, a session, or a function of the run's config that returns an id. By
            default the run's `thread_id` is the id, so that two threads never share variables. A run
            without `thread_id` gets a fresh sandbox for each call.
    """
    if not isinstance(broker, Broker):
        raise TypeError(
            "broker is what kernelbroker.connect() returns; the tools are sync and async"
        )

    def tool(
        name: str, description: str, schema: type[BaseModel], work: Callable[..., _Work]
    ) -> StructuredTool:
        async def coroutine(config: RunnableConfig, **arguments: Any) -> Answered:
            async with opened(broker, chosen_id(session, config)) as found:
                try:
                    return await work(**arguments)(found)
                except (KernelBrokerError, UnicodeError) as exc:
                    return _answer(False, "", error=str(exc))

        def func(config: RunnableConfig, **arguments: Any) -> Answered:
            return run_sync(coroutine(config, **arguments))

        return StructuredTool.from_function(
            func=func,
            coroutine=coroutine,
            name=name,
            description=description,
            args_schema=schema,
            response_format="content_and_artifact",
        )

    return [
        tool(
            "execute_python",
            "Run Python in a sandbox. Variables and the files in /data stay from call to call. You see the "
            "printed text and the value of the last expression; pandas and matplotlib are installed.",
            ExecutePython,
            _execute,
        ),
        tool(
            "install_packages", "Install Python packages in the sandbox.", InstallPackages, _install
        ),
        tool("list_files", "List the files in a directory of the sandbox.", ListFiles, _list),
        tool("read_file", "Read a text file of the sandbox.", ReadFile, _read),
        tool("write_file", "Write a text file into the sandbox.", WriteFile, _write),
    ]


def _execute(code: str, timeout: float | None = None) -> _Work:
    async def work(session: Session) -> Answered:
        return of_result(await session.run(code, timeout=timeout))

    return work


def _install(packages: list[str]) -> _Work:
    async def work(session: Session) -> Answered:
        return of_result(await session.install(*packages))

    return work


def _list(path: str = ".") -> _Work:
    async def work(session: Session) -> Answered:
        listing = await session.files.list(relative(path))
        lines = [
            f"{each.path}/" if each.kind == "directory" else f"{each.path}  {each.size:,} bytes"
            for each in listing[:MAX_LISTED]
        ]
        if len(listing) > MAX_LISTED:
            lines.append(f"[{len(listing) - MAX_LISTED} more]")
        return _answer(True, "\n".join(lines))

    return work


def _read(path: str) -> _Work:
    async def work(session: Session) -> Answered:
        text = await session.files.read_text(relative(path))
        more = len(text) - MAX_FILE_CHARS
        note = f"\n[{more:,} more characters: read them with execute_python]" if more > 0 else ""
        return _answer(True, text[:MAX_FILE_CHARS] + note)

    return work


def _write(path: str, content: str) -> _Work:
    async def work(session: Session) -> Answered:
        await session.files.write(relative(path), content)
        made = {"type": "file", "path": relative(path), "size": len(content.encode())}
        return _answer(True, f"{relative(path)} is written", artifacts=[made])

    return work


def of_result(result: ExecutionResult) -> Answered:
    """Return the answer of a cell, and its pictures and files."""
    artifacts: list[dict[str, Any]] = []
    room = MAX_IMAGE_BYTES
    for image in result.images:
        room -= len(image.content)
        if room >= 0:
            data = base64.b64encode(image.content).decode()
            artifacts.append({"type": "image", "mime": image.mime, "data": data})
    artifacts += [
        {"type": "file", "path": each.path, "size": each.size} for each in result.files[:MAX_LISTED]
    ]
    seconds = result.execution_time
    return _answer(
        result.success,
        result.text,
        error=result.error,
        milliseconds=None if seconds is None else round(seconds * 1000),
        artifacts=artifacts,
    )


def _answer(
    success: bool,
    output: str,
    *,
    error: str | None = None,
    milliseconds: int | None = None,
    artifacts: list[dict[str, Any]] | None = None,
) -> Answered:
    """The text for the model, which names the artifacts, and the artifacts."""
    artifacts = artifacts or []
    named = [{key: each[key] for key in each if key != "data"} for each in artifacts]
    content = {
        "success": success,
        "output": output,
        "error": error,
        "execution_time_ms": milliseconds,
        "artifacts": named,
    }
    return json.dumps(content, ensure_ascii=False), artifacts


def relative(path: str) -> str:
    """Return a path relative to /data. Models name absolute paths as well."""
    if path == "/data" or path.startswith("/data/"):
        path = path.removeprefix("/data").lstrip("/")
    return path or "."
