"""Restores the processes of a checkpoint in a sandbox that a session has just got."""

from __future__ import annotations

from kernelbroker.protocol.errors import Conflict

from ..backends.process_saver import CheckpointFailed
from ..pool import process_images
from ..pool.warm_sandbox import WarmSandbox
from .restoring import LoadFailed, Source

PROCESS = "process"
"""The mode of checkpoints that have processes."""


async def has_processes(source: Source) -> bool:
    """Whether a checkpoint has processes. Raises NotFound."""
    return (await source.store.get(source.tenant, source.name)).mode == PROCESS


async def restore_processes(warm: WarmSandbox, source: Source, unavailable: str) -> None:
    """Put the processes of a checkpoint in the place of those of the sandbox.

    Args:
        unavailable: why processes cannot be restored in sandboxes of this template, if so.

    Raises:
        NotFound: the checkpoint was deleted.
        Conflict: processes cannot be restored here.
        LoadFailed: it did not work.
    """
    if unavailable:
        raise Conflict(
            f'its mode is "process", and processes cannot be restored here: {unavailable}'
        )
    try:
        async with source.store.open(source.tenant, source.name) as (_, chunks):
            await process_images.restore(warm, chunks)
    except CheckpointFailed as error:
        raise LoadFailed(f"the processes could not be restored: {error}", retry_after=1) from error
