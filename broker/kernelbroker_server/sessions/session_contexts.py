"""What a session has to do with its contexts: it makes their leases, and closes after them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from kernelbroker.protocol.errors import SessionGone
from kernelbroker.protocol.messages import SessionOptions

from ..pool.warm_sandbox import WarmSandbox
from ..telemetry.events import SessionEmitter
from .context_lease import ContextLease
from .effects import Effect
from .session_view import SessionView


class SessionWithContexts(SessionView):
    """The base of `Session`."""

    drained: asyncio.Future[None]

    def __init__(self, context_of: Self | None) -> None:
        self.session: Self | None = context_of
        self.contexts: dict[str, Self] = {}
        self._pending: Callable[[], list[Effect]] | None = None
        """What closes or leaves it as soon as its contexts are closed or left."""

    def context_lease(
        self,
        options: SessionOptions,
        emit: SessionEmitter,
        key: str,
        adopted: WarmSandbox | None = None,
    ) -> ContextLease:
        """Return a lease for a context of this session."""
        return ContextLease(self._runner, self._lease, options, emit, key=key, adopted=adopted)

    def add_context(self, context: Self) -> None:
        """Add an open context. Raises SessionGone if this session has been closed meanwhile."""
        self.expect_open()
        if self._pending is not None:
            raise SessionGone(f"session {self.id} is being closed")
        self.contexts[context.id] = context

    def remove_context(self, context: Self) -> None:
        """Forget a context that has ended. This counts as activity."""
        if self.contexts.get(context.id) is context:
            del self.contexts[context.id]
            self._runner.touch()

    def _after_contexts(self, decide: Callable[[], list[Effect]]) -> None:
        """Apply a decision of the machine when all contexts are closed or left."""
        self._pending = decide
        for context in self.contexts.values():
            context.drained.add_done_callback(lambda _: self._decide())
        self._decide()

    def _decide(self) -> None:
        decide = self._pending
        if decide is not None and all(each.drained.done() for each in self.contexts.values()):
            self._pending = None
            self._runner.apply(decide())
