"""Translates what a pool and its sandboxes raise into the errors of requests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from kernelbroker.protocol.errors import TooManyRequests, Unavailable

from ..backends.base import LaunchError
from ..pool.runner import AcquireTimeout, PoolClosed, PoolDraining
from ..pool.state import PoolFull
from ..pool.warm_sandbox import WarmSandbox


def remember(warm: WarmSandbox, key: str, *, is_ready: bool = False) -> None:
    """See `Sandbox.remember`. Raises Unavailable."""
    try:
        warm.sandbox.remember(session=key, is_ready=is_ready)
    except LaunchError as exc:
        raise Unavailable(str(exc), retry_after=10) from exc


@contextlib.contextmanager
def pool_errors(timeout: float) -> Iterator[None]:
    """Translate the pool's errors.

    Args:
        timeout: seconds that the caller waits for a sandbox.
    """
    try:
        yield
    except PoolFull:
        raise TooManyRequests(
            "too many sessions are waiting for a sandbox; try again later", retry_after=5
        ) from None
    except AcquireTimeout as exc:
        raise Unavailable(
            f"no sandbox became free within {timeout:g} s ({exc}); "
            "close sessions that are done, or raise pool.max_size",
            retry_after=5,
        ) from None
    except PoolDraining:
        raise Unavailable(
            "an operator drains this template: use another one, or try again later", retry_after=30
        ) from None
    except PoolClosed:
        raise Unavailable("the broker is shutting down", retry_after=10) from None
