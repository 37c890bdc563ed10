"""Saves the variables of a sandbox that its session is about to leave. `restoring.py` loads them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from kernelbroker.protocol.errors import ProtocolError, Unavailable
from kernelbroker.protocol.messages import CheckpointInfo, MissingVariable
from kernelbroker_kernel.contract import EXPORTS_PATH, INTERNAL_CELL_CODE, INTERNAL_CELL_MIME

from ..kernels.framing import Incoming
from ..kernels.transfer import GatewayRequest, TransferFailed
from ..pool.warm_sandbox import WarmSandbox, run_silently
from .restoring import Source

SAVE_S = 120.0
"""Seconds that saving may take."""
_KEPT_S = 3600.0
"""How long the checkpoint is kept at most, if the broker dies meanwhile."""


_REASON_CHARS = 500


class _Report(msgspec.Struct):
    missing: list[MissingVariable] = []


class _Refused(msgspec.Struct):
    message: str


class _Answer(msgspec.Struct):
    saved: _Report | None = None
    refused: _Refused | None = None


async def save(
    warm: WarmSandbox, source: Source, session_id: str, configured: Sequence[str]
) -> list[MissingVariable]:
    """Save the variables, without the files. No cell may run meanwhile.

    Args:
        source: where to save them.
        configured: the names of environment variables that the session sends to each of its sandboxes.

    Returns:
        What cannot be saved.

    Raises:
        RequestError: the checkpoint is too large, or cannot be stored.
        ChannelClosed, TransferFailed, TimeoutError: the sandbox failed.
    """
    answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def on_message(message: Incoming) -> None:
        if (message.channel, message.header.msg_type) == ("iopub", "display_data"):
            with contextlib.suppress(ProtocolError):
                data = message.content_as(dict).get("data")
                if isinstance(data, dict) and INTERNAL_CELL_MIME in data and not answered.done():
                    answered.set_result(data[INTERNAL_CELL_MIME])

    ticket = secrets.token_hex(16)
    asked = {
        "save": {
            "ticket": ticket,
            "max_bytes": source.store.limits.size,
            "files": False,
            "configured": list(configured),
        }
    }
    info = CheckpointInfo(
        name=source.name,
        mode="sleep",
        size=0,
        created_at=datetime.now(UTC),
        session_id=session_id,
        template=warm.sandbox.spec.template,
        python="",
        complete=False,
    )
    async with asyncio.timeout(SAVE_S):
        # The cell answers, and ends when the gateway has sent what it exports.
        running = run_silently(warm, INTERNAL_CELL_CODE, asked, on_message=on_message)
        cell = asyncio.ensure_future(running)
        try:
            await asyncio.wait([answered, cell], return_when=asyncio.FIRST_COMPLETED)
            report = _report(answered)
            path = f"{EXPORTS_PATH}/{ticket}"
            async with await warm.gateway.request("GET", path) as exchange:
                await source.store.save(source.tenant, info, _received(exchange), _KEPT_S)
            await cell
        finally:
            cell.cancel()
            await asyncio.wait([cell])
    return report.missing


def _report(answered: asyncio.Future[Any]) -> _Report:
    """Return what the cell answered. Raises Unavailable."""
    reason = "the kernel could not save its variables"
    if answered.done():
        with contextlib.suppress(msgspec.ValidationError):
            answer = msgspec.convert(answered.result(), _Answer)
            if answer.saved is not None:
                return answer.saved
            if answer.refused is not None:
                reason = answer.refused.message[:_REASON_CHARS]
    raise Unavailable(reason)


async def _received(exchange: GatewayRequest) -> AsyncIterator[bytes]:
    await exchange.answer()
    if exchange.status != 200:
        raise TransferFailed(f"the sandbox answered with status {exchange.status}")
    async for chunk in exchange.chunks():
        yield chunk
