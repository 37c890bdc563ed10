"""Saves the processes of a sandbox as one stream of bytes, and puts such a stream into another sandbox.

The stream is an archive of the files that the backend writes and reads. Nothing looks into them in between.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from kernelbroker.protocol.codec import decode_json

from ..backends.base import LaunchError
from ..backends.directories import remove_tree
from ..backends.process_saver import CheckpointFailed, ProcessSaver
from ..kernels.channel import ChannelClosed
from .warm_sandbox import WarmSandbox

logger = logging.getLogger(__name__)

_ATTACH_S = 30.0
"""The time that a gateway has to answer again."""
_CHUNK = 1024 * 1024
_BLOCK = tarfile.BLOCKSIZE
_KERNEL = "kernel.json"


class _Kernel(msgspec.Struct):
    """Of the images: the id of the first kernel."""

    kernel_id: str


class StoppedProcesses:
    """The processes of a sandbox, saved and standing still.

    Attributes:
        go_on: they go on at the end; otherwise the sandbox is not used any more.
    """

    def __init__(self, images: Path) -> None:
        self.go_on = True
        self._images = images

    async def stream(self) -> AsyncIterator[bytes]:
        """The images. Raises CheckpointFailed."""
        try:
            for path in await asyncio.to_thread(lambda: sorted(self._images.iterdir())):
                with await asyncio.to_thread(path.open, "rb", buffering=0) as file:
                    entry = tarfile.TarInfo(path.name)
                    entry.size = path.stat().st_size
                    yield entry.tobuf(tarfile.PAX_FORMAT)
                    while chunk := await asyncio.to_thread(file.read, _CHUNK):
                        yield chunk
                    yield bytes(-entry.size % _BLOCK)
        except OSError as error:
            raise CheckpointFailed(str(error)) from error


@contextlib.asynccontextmanager
async def stopped(warm: WarmSandbox, *, files: bool) -> AsyncIterator[StoppedProcesses]:
    """Save the processes of a sandbox, which stand still in the block. Nobody else may use it meanwhile.

    Args:
        files: also save the workspace.

    Raises:
        CheckpointFailed: they go on, or the sandbox has ended.
    """
    saver = _saver(warm)
    images = saver.images
    await warm.gateway.detach()
    processes = StoppedProcesses(images)
    is_stopped = False
    try:
        await _make(images)
        await saver.save_processes(images, files=files)
        is_stopped = True
        _write_kernel(images, warm.channel.kernel_id)
        yield processes
    finally:
        if processes.go_on:
            if is_stopped:
                await saver.resume()
            with contextlib.suppress(ChannelClosed):  # its user learns of the end
                await warm.gateway.attach(_ATTACH_S)
        await remove_tree(images)


async def restore(warm: WarmSandbox, stream: AsyncIterator[bytes]) -> None:
    """Put saved processes in the place of those of a sandbox that nobody has used.

    Raises:
        CheckpointFailed: the sandbox cannot be used any more.
    """
    saver = _saver(warm)
    images = saver.images
    try:
        await _make(images)
        await _unpack(stream, images)
        kernel = decode_json((images / _KERNEL).read_bytes(), _Kernel)
        await warm.gateway.detach()
        await saver.restore_processes(images)
        await warm.gateway.attach(_ATTACH_S, kernel.kernel_id)
        warm.sandbox.remember(kernel_id=kernel.kernel_id)
    except (
        OSError,
        LaunchError,
        msgspec.MsgspecError,
        tarfile.TarError,
        ChannelClosed,
    ) as error:
        raise CheckpointFailed(str(error)) from error
    finally:
        await remove_tree(images)


def _saver(warm: WarmSandbox) -> ProcessSaver:
    if warm.sandbox.process_saver is None:
        raise CheckpointFailed("its sandbox was launched by a broker with other settings")
    return warm.sandbox.process_saver


async def _make(images: Path) -> None:
    await remove_tree(images)
    await asyncio.to_thread(images.mkdir, 0o700)


def _write_kernel(images: Path, kernel_id: str) -> None:
    try:
        (images / _KERNEL).write_bytes(msgspec.json.encode(_Kernel(kernel_id)))
    except OSError as error:
        raise CheckpointFailed(str(error)) from error


async def _unpack(stream: AsyncIterator[bytes], images: Path) -> None:
    """Raises CheckpointFailed, OSError, TarError."""
    data = bytearray()
    file: BinaryIO | None = None
    size = padding = 0
    try:
        async for chunk in stream:
            data += chunk
            while True:
                if file is not None and size:
                    piece = bytes(data[:size])
                    await asyncio.to_thread(file.write, piece)
                    size -= len(piece)
                    del data[: len(piece)]
                if size or len(data) < padding + _BLOCK:
                    break
                del data[:padding]
                entry = tarfile.TarInfo.frombuf(bytes(data[:_BLOCK]), "utf-8", "strict")
                del data[:_BLOCK]
                if file is not None:
                    file.close()
                file = (images / Path(entry.name).name).open("xb")
                size, padding = entry.size, -entry.size % _BLOCK
    finally:
        if file is not None:
            file.close()
    if size or len(data) != padding:
        raise CheckpointFailed("the checkpoint is damaged")
