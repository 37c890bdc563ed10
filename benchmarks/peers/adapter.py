"""What an adapter of a peer provides. Only the standard library: it runs in each peer's environment.

An adapter is used by one worker process. If its library blocks, all methods are plain functions and
`blocking` is true; else they are coroutines. A session is whatever `open` returns.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from time import perf_counter
from typing import Any

AWAY_S = 0.5
"""How long a client stays away whose connection was cut."""


@dataclass
class Outcome:
    """What one cell produced, as far as the peer's client tells it.

    Attributes:
        text: printed text and the text of displayed values.
        images: number of pictures.
        error: one line, or None if the cell ran to its end.
        cut: the client says that it left out output.
        first_s: `perf_counter` when the first output was seen; None if the client shows it at the end.
    """

    text: str = ""
    images: int = 0
    error: str | None = None
    cut: bool = False
    first_s: float | None = None

    def see(self, text: str) -> None:
        if self.first_s is None:
            self.first_s = perf_counter()
        self.text += text


class Adapter:
    """The base of all adapters."""

    blocking = False
    stateless = False
    """Each cell runs in a new interpreter."""
    shows_values = True
    """The value of a cell's last expression comes back."""

    def __init__(self, *, cold: bool = False) -> None:
        """Args: cold: keep no warm sandboxes (only for peers that have any)."""
        self.cold = cold

    def start(self) -> Any:
        """Start what all sessions share, such as a server."""

    def settle(self) -> Any:
        """Wait until the peer is ready for the next session; not measured."""

    def open(self) -> Any:
        """Open a session and return it."""
        raise NotImplementedError

    def run(self, session: Any, code: str, timeout: float | None = None) -> Any:
        """Run one cell with the peer's own timeout, and return an `Outcome`."""
        raise NotImplementedError

    def restart(self, session: Any) -> Any:
        """Give the session a fresh interpreter, and return the session. By default: close and open."""
        if self.blocking:
            self.close(session)
            return self.open()
        return self._reopen(session)

    async def _reopen(self, session: Any) -> Any:
        await self.close(session)
        return await self.open()

    def close(self, session: Any) -> Any:
        raise NotImplementedError

    def stop(self) -> Any:
        """Remove everything that `start` started."""

    def resume(self, session: Any, code: str) -> Any:
        """Run a cell, cut the connection after the first output for `AWAY_S`, and return all text.

        Raises NotImplementedError if the client has no means to come back.
        """
        raise NotImplementedError

    def other_processes(self) -> set[int]:
        """Pids that belong to the sessions and do not descend from the worker."""
        return set()


async def call(function: Callable[..., Any], *args: Any, executor: Executor | None = None) -> Any:
    """Call a method of an adapter. With an executor a blocking one runs in one of its threads."""
    if executor is not None and not inspect.iscoroutinefunction(function):
        answer = await asyncio.get_running_loop().run_in_executor(executor, function, *args)
    else:
        answer = function(*args)
    return await answer if inspect.isawaitable(answer) else answer
