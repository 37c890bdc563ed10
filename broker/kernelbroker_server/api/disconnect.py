"""Requests that end when their client disconnects."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from tornado.iostream import StreamClosedError
from tornado.web import RequestHandler


class ClientDisconnected(Exception):
    """The client closed the connection before it was answered."""


class Disconnectable(RequestHandler):
    """A handler whose work can be bound to the client's connection.

    Attributes:
        gone: whether the client has closed the connection.
    """

    gone = False
    _task: asyncio.Task[object] | None = None

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self.gone = True
        if self._task is not None:
            self._task.cancel()

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer with an error, unless the client has disconnected."""
        if not self.gone:
            super().send_error(status_code, **kwargs)
            return
        if not self._headers_written:
            self.set_status(
                499, "Client Closed Request"
            )  # for logs and metrics: the status of nginx for this case
        if not self._finished:
            self.finish()

    def hang_up(self) -> None:
        """Close the connection, so that the client notices that bytes are missing."""
        connection: Any = self.request.connection
        if connection.stream is not None:
            connection.stream.close()

    @contextlib.asynccontextmanager
    async def until_disconnected(self) -> AsyncIterator[None]:
        """Cancel the block when the client disconnects.

        Raises:
            ClientDisconnected: the client has disconnected before or during the block. There is
                nothing left to do; the handler lets it propagate.
        """
        if self.gone:
            raise ClientDisconnected
        task = self._task = asyncio.current_task()
        assert task is not None
        try:
            yield
        except (
            StreamClosedError
        ) as exc:  # a write may notice before `on_connection_close` is called
            self.gone = True
            raise ClientDisconnected from exc
        except asyncio.CancelledError as exc:
            if not self.gone:
                raise
            task.uncancel()
            raise ClientDisconnected from exc
        finally:
            self._task = None
