"""Requests whose client may go away while they are answered."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler


class Disconnectable(RequestHandler):
    """What is done inside `until_disconnected` ends with the client's connection.

    Attributes:
        gone: the client went away.
    """

    gone = False
    _task: asyncio.Task[object] | None = None

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.gone = True
        if self._task is not None:
            self._task.cancel()

    @contextlib.asynccontextmanager
    async def until_disconnected(self) -> AsyncIterator[None]:
        """Let the client go away at any moment: the block is cancelled, the request is over."""
        self._task = asyncio.current_task()
        try:
            yield
        except StreamClosedError:  # a write may see it before `on_connection_close` is called
            self.gone = True
        except asyncio.CancelledError:
            if not self.gone:
                raise
        finally:
            self._task = None
