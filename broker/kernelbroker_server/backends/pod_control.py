"""Asks the first process of a Pod for what an engine does for containers: `contract.POD_ENTRY_MODULE`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, TypeAlias, TypeVar

import msgspec
from kernelbroker.protocol.codec import decode_json
from kernelbroker_kernel.contract import (
    POD_END_PATH,
    POD_EXIT_PATH,
    POD_FILES_PATH,
    POD_KILL_PATH,
    POD_USAGE_PATH,
)
from kernelbroker_kernel.tree_stream import TreeError, TreeWriter, read_tree

from ..kernels.endpoint import TcpEndpoint
from ..kernels.transfer import GatewayRequest, TransferFailed
from .base import Usage
from .cgroups import memory_in_use

T = TypeVar("T")
_ANSWER_BYTES = 64 * 1024
_ASK_S = 10.0


# The Pod is hostile: numbers that no sandbox can have are no answer.
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Seconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Status: TypeAlias = Annotated[int, msgspec.Meta(ge=-255, le=255)]


class GatewayEnd(msgspec.Struct):
    """How the gateway ended. If `restarted`, its whole container did, and only the API knows why."""

    status: _Status
    oom: bool
    output: str
    restarted: bool = False


class _Used(msgspec.Struct):
    memory: _Count | None = None
    memory_stat: dict[str, _Count] = {}
    cpu_s: _Seconds | None = None


class _Size(msgspec.Struct):
    size: _Count
    files: _Count
    complete: bool


class PodControl:
    """One Pod's first process. All calls raise TransferFailed if it does not answer as it should."""

    def __init__(self, endpoint: TcpEndpoint) -> None:
        self._endpoint = endpoint

    async def end(self, on_contact: Callable[[], None]) -> GatewayEnd:
        """Wait until the gateway has ended.

        Args:
            on_contact: called whenever something has come from the Pod.
        """
        gathered = b""
        async with await self._open("GET", POD_END_PATH) as request:
            await _answered(request)
            on_contact()
            async with contextlib.aclosing(request.chunks()) as chunks:
                async for chunk in chunks:
                    on_contact()
                    gathered = (gathered + chunk).lstrip()
                    if len(gathered) > _ANSWER_BYTES:
                        raise TransferFailed("its answer is too long")
        return _decoded(gathered, GatewayEnd)

    async def memory(self) -> int | None:
        used = _decoded(await self._ask("GET", POD_USAGE_PATH), _Used)
        return None if used.memory is None else memory_in_use(used.memory, used.memory_stat)

    async def processor_time(self) -> float | None:
        return _decoded(await self._ask("GET", POD_USAGE_PATH), _Used).cpu_s

    async def workspace_usage(self, max_files: int) -> Usage:
        found = _decoded(await self._ask("GET", f"{POD_USAGE_PATH}?files={max_files}"), _Size)
        return Usage(found.size, found.files, found.complete)

    async def kill(self) -> None:
        """End all processes but the first one."""
        await self._ask("POST", POD_KILL_PATH)

    async def exit(self) -> None:
        """End the first one as well."""
        await self._ask("POST", POD_EXIT_PATH)

    async def fetch_files(self, directory: Path, max_bytes: int, max_entries: int) -> None:
        """Write the workspace into an empty directory. Raises OSError as well."""
        async with await self._open("GET", POD_FILES_PATH) as request:
            await _answered(request)
            writer = TreeWriter(directory, max_bytes, max_entries)
            try:
                async with contextlib.aclosing(request.chunks()) as chunks:
                    async for chunk in chunks:
                        await asyncio.to_thread(writer.feed, chunk)
                writer.finish()
            except TreeError as error:
                raise TransferFailed(str(error)) from error
            finally:
                await asyncio.to_thread(writer.close)

    async def send_files(self, directory: Path) -> None:
        """Write a directory into the workspace. Raises OSError as well."""
        headers = {"Transfer-Encoding": "chunked"}
        tree = read_tree(directory)
        async with await self._open("PUT", POD_FILES_PATH, headers) as request:
            try:
                while (piece := await asyncio.to_thread(next, tree, None)) is not None:
                    if not await request.send(piece):
                        break
                await _answered(request)
            finally:
                tree.close()

    async def _ask(self, method: str, target: str) -> bytes:
        try:
            async with asyncio.timeout(_ASK_S), await self._open(method, target) as request:
                await _answered(request)
                return await request.body(_ANSWER_BYTES)
        except TimeoutError as error:
            raise TransferFailed("the sandbox did not answer in time") from error

    async def _open(
        self, method: str, target: str, headers: dict[str, str] | None = None
    ) -> GatewayRequest:
        if method == "POST":
            headers = {"Content-Length": "0"}
        return await GatewayRequest.open(self._endpoint, method, target, headers)


async def _answered(request: GatewayRequest) -> None:
    await request.answer()
    if request.status != 200:
        raise TransferFailed(f"the sandbox answered with status {request.status}")


def _decoded(text: bytes, kind: type[T]) -> T:
    try:
        return decode_json(text, kind)
    except msgspec.MsgspecError as error:
        raise TransferFailed("the sandbox's answer is invalid") from error
