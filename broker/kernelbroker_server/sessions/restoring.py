"""Loads a checkpoint in a sandbox that a session has just got. The broker never looks into its data."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from dataclasses import dataclass
from typing import Any

import msgspec
from kernelbroker.protocol.errors import (
    Conflict,
    ProtocolError,
    RequestError,
    TooLarge,
    Unavailable,
)
from kernelbroker.protocol.messages import MissingVariable
from kernelbroker_kernel.contract import (
    CHECKPOINTS,
    FILES_PATH,
    INTERNAL_CELL_CODE,
    INTERNAL_CELL_MIME,
)

from ..kernels.channel import ChannelClosed
from ..kernels.framing import Incoming
from ..kernels.transfer import TransferFailed
from ..pool.warm_sandbox import WarmSandbox, run_silently
from ..workspaces.checkpoint_store import CheckpointStore

LOAD_S = 300.0
"""Seconds that loading may take, after the data is in the sandbox."""
_MESSAGE_CHARS = 1000


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint in the store."""

    store: CheckpointStore
    tenant: str
    name: str


class LoadFailed(Unavailable):
    """The sandbox failed while it loaded a checkpoint."""


class _Loaded(msgspec.Struct):
    missing: list[MissingVariable] = []
    env_missing: list[str] = []


class _Refused(msgspec.Struct):
    code: str
    message: str


class _Answer(msgspec.Struct):
    loaded: _Loaded | None = None
    refused: _Refused | None = None


async def restore(warm: WarmSandbox, source: Source, *, has_cwd: bool) -> list[MissingVariable]:
    """Send a checkpoint into a sandbox, and load its files and variables there.

    Args:
        has_cwd: the session was given a working directory, so that of the checkpoint is not entered.

    Returns:
        What could not be loaded.

    Raises:
        NotFound: the checkpoint was deleted.
        Conflict: the checkpoint is damaged, or this sandbox cannot read it.
        TooLarge: it does not fit into the workspace's disk.
        LoadFailed: the sandbox failed.
    """
    path = f"{CHECKPOINTS}/{secrets.token_hex(8)}"
    try:
        async with source.store.open(source.tenant, source.name) as (size, chunks):
            headers = {"Content-Length": str(size)}
            async with await warm.gateway.request("PUT", f"{FILES_PATH}/{path}", headers) as put:
                async for chunk in chunks:
                    if not await put.send(chunk):
                        break
                await put.answer()
                if put.status != 204:
                    raise TooLarge("the checkpoint does not fit into the sandbox's workspace")
        return await load(warm, path, has_cwd=has_cwd)
    except TransferFailed as exc:
        raise LoadFailed(f"the checkpoint could not be loaded: {exc}", retry_after=1) from exc


async def load(warm: WarmSandbox, path: str, *, has_cwd: bool) -> list[MissingVariable]:
    """Load a checkpoint that is in the workspace, where it is removed. Raises as `restore`."""
    answers: list[Any] = []

    def on_message(message: Incoming) -> None:
        if (message.channel, message.header.msg_type) == ("iopub", "display_data"):
            with contextlib.suppress(ProtocolError):
                data = message.content_as(dict).get("data")
                if isinstance(data, dict) and INTERNAL_CELL_MIME in data:
                    answers.append(data[INTERNAL_CELL_MIME])

    asked = {"load": {"path": path, "has_cwd": has_cwd}}
    try:
        async with asyncio.timeout(LOAD_S):
            await run_silently(warm, INTERNAL_CELL_CODE, asked, on_message=on_message)
        answer = msgspec.convert(answers[0], _Answer)
    except (ChannelClosed, TimeoutError, IndexError, msgspec.ValidationError) as exc:
        reason = str(exc) or f"it took longer than {LOAD_S:g} s"
        raise LoadFailed(f"the checkpoint could not be loaded: {reason}") from exc
    if answer.refused is not None:
        raise _error(answer.refused)
    loaded = answer.loaded or _Loaded()
    reason = "a variable of the environment, whose value is not in the checkpoint: pass it in env"
    env = [MissingVariable(name=f"${name}", reason=reason) for name in loaded.env_missing]
    return [*loaded.missing, *env]


def _error(refused: _Refused) -> RequestError:
    kind = TooLarge if refused.code == TooLarge.code else Conflict
    return kind(refused.message[:_MESSAGE_CHARS])
