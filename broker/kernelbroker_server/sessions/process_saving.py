"""Saves the processes of a session's sandbox, while nothing else uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeAlias, TypeVar

from kernelbroker.protocol.errors import Conflict

from ..backends.process_saver import CheckpointFailed
from ..cancellation import run_to_completion
from ..pool import process_images
from .lease import Lease
from .runner import SessionRunner

T = TypeVar("T")
Store: TypeAlias = Callable[[AsyncIterator[bytes]], Awaitable[T]]


async def save_processes(
    runner: SessionRunner,
    lease: Lease,
    store: Store[T],
    *,
    files: bool,
    fall_asleep: Callable[[], bool] | None = None,
) -> T:
    """Save the processes, which stand still meanwhile.

    If the caller is cancelled, it is completed first: the processes must not stay as they are.

    Args:
        store: stores the stream, while they stand still.
        files: also save the workspace.
        fall_asleep: called when they are stored, if nothing waits for the session: gives the sandbox back.

    Raises:
        SessionGone
        Conflict: something runs or waits, or the processes cannot be saved.
        what `store` raises.
    """
    runner.notice_death()
    runner.machine.save()
    return await run_to_completion(_save(runner, lease, store, files, fall_asleep))


async def _save(
    runner: SessionRunner,
    lease: Lease,
    store: Store[T],
    files: bool,
    fall_asleep: Callable[[], bool] | None,
) -> T:
    warm = lease.current
    assert warm is not None, "the session is ready"
    is_asleep = False
    try:
        async with process_images.stopped(warm, files=files) as processes:
            stored = await store(processes.stream())
            if fall_asleep is not None and runner.machine.can_sleep:
                is_asleep = fall_asleep()
                processes.go_on = not is_asleep
            return stored
    except CheckpointFailed as error:
        raise Conflict(
            f'the processes could not be saved: {error}; mode="values" saves the variables'
        ) from error
    finally:
        if not is_asleep:
            runner.saved()
