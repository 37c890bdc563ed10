"""The kernel's channels in the gateway, on jupyter_server's connection class."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, ClassVar

import zmq
from jupyter_server.services.kernels.connection.channels import ZMQChannelsWebsocketConnection
from tornado.iostream import StreamClosedError
from traitlets import Bool

from ..contract import CHANNELS_AFTER, KERNEL_ENDED
from ..relay import Relay


class Connection(ZMQChannelsWebsocketConnection):
    """The kernel's channels as one WebSocket. A later connection takes the place of an earlier one.

    The stock class closes the kernel's sockets with the connection, or keeps all messages until the next
    one, whatever their size. Here they belong to the relay, which stays. There are no rate limits, which
    drop output silently.
    """

    limit_rate = Bool(False)
    relays: ClassVar[dict[str, Relay]] = {}
    """Of the kernels that have answered once, by id."""
    monitors: ClassVar[dict[str, list[Any]]] = {}
    """For each of these kernels sockets that tell when its output and its replies have ended."""
    current: ClassVar[dict[str, Connection]] = {}
    """The open connection to each kernel, by its id."""
    alone: ClassVar[float] = 0.0
    """Seconds to wait for the next broker when the broker has died."""

    @property
    def relay(self) -> Relay | None:
        return self.relays.get(self.kernel_id)

    @classmethod
    async def delivered(cls, kernel_id: str) -> None:
        """Wait until a broker has stored everything that a kernel has sent, and pass on nothing further.

        If the broker dies, the next one gets it, within the seconds of `alone`.
        """
        if (relay := cls.relays.get(kernel_id)) is not None:
            await relay.delivered(cls.alone)

    @classmethod
    async def receive_rest(cls, kernel_id: str, seconds: float) -> None:
        """Wait until everything that a kernel has sent before its end is read, at most for so long."""
        relay, monitors = cls.relays.get(kernel_id), cls.monitors.pop(kernel_id, [])
        if relay is None:
            return
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        for monitor in monitors:
            # Meanwhile the relay reads.
            while not zmq.zmq_poll([(monitor, zmq.POLLIN)], 0) and clock() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            monitor.close()
        if not relay.is_held:
            relay.drain()

    @classmethod
    def end(cls, kernel_id: str, status: int) -> None:
        """Close the connection to a kernel that has ended, when it has sent what the kernel sent."""
        if (relay := cls.relays.pop(kernel_id, None)) is not None:
            relay.end()
        if (connection := cls.current.pop(kernel_id, None)) is not None:
            connection.websocket_handler.close(KERNEL_ENDED, str(status))

    @classmethod
    def forsake(cls, kernel_id: str) -> None:
        """Let nobody get what a kernel still sends: the broker ends it."""
        if (relay := cls.relays.get(kernel_id)) is not None:
            relay.forsake()

    @classmethod
    def give_up(cls, manager: Any) -> None:
        """Let a connection that waits for the kernel's first answer fail: the kernel has ended."""
        answer = getattr(manager, "_kernel_info_future", None)
        if answer is not None and not answer.done():
            answer.set_result({})

    async def prepare(self) -> Any:
        if self.relay is None:
            return await super().prepare()
        # The kernel has answered once. It may be busy now.
        return await self._register_session()

    def connect(self) -> Any:
        # Over TCP, Nagle's algorithm and delayed acknowledgements would cost 40 ms a cell.
        self.websocket_handler.set_nodelay(True)
        self.current[self.kernel_id] = self
        if self.relay is None:
            connected = super().connect()
            if connected is None:
                self.websocket_handler.close(KERNEL_ENDED, "1")
            else:
                connected.add_done_callback(self._begin)
            return connected
        self.channels = self.relay.channels
        after = self.websocket_handler.get_argument(CHANNELS_AFTER, None)
        self.relay.join(self._send, None if after is None else int(after))
        return asyncio.sleep(0)

    def disconnect(self) -> Any:
        if self.relay is None:
            self._forget()
            return super().disconnect()
        self.relay.disconnect(self._send)
        if self._open_sessions.get(self.session_key) is self.websocket_handler:
            del self._open_sessions[self.session_key]
        self._forget()
        self.channels = {}
        return None

    def handle_incoming_message(self, incoming_msg: Any) -> None:
        """Pass a message on to the kernel. A text is the number of a message that is acknowledged."""
        # What an earlier broker has sent comes too late: the present one sends it again.
        if self.current.get(self.kernel_id) is not self or self.relay is None:
            return
        if isinstance(incoming_msg, str):
            self.relay.acknowledge(int(incoming_msg))
        else:
            self.relay.received += 1
            super().handle_incoming_message(incoming_msg)

    def _begin(self, _connected: Any) -> None:
        """Run when the kernel is ready."""
        with suppress(KeyError):  # the kernel has ended
            # It tracks the kernel's last activity, and parses all output again.
            self.multi_kernel_manager.stop_watching_activity(self.kernel_id)
        if self.channels and self.kernel_id in self.multi_kernel_manager:
            self.monitors[self.kernel_id] = [
                self.channels[name].socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
                for name in ("shell", "iopub")
            ]
            self.relays[self.kernel_id] = relay = Relay(self.channels)
            relay.connect(self._send)

    def _forget(self) -> None:
        if self.current.get(self.kernel_id) is self:
            del self.current[self.kernel_id]

    def _send(self, frames: bytes) -> None:
        websocket: Any = self.websocket_handler.ws_connection
        if websocket is not None and not websocket.is_closing():
            with suppress(StreamClosedError):
                websocket.stream.write(frames)
