"""What the kernels of a session send, for those who follow it from kernel to kernel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Protocol

from ..kernels.channel import ChannelClosed, KernelChannel, Subscription
from ..kernels.framing import Incoming


class Follower(Protocol):
    """Is called in the event loop, in the order of events."""

    def on_message(self, message: Incoming) -> None:
        """The present kernel has sent a message."""

    def on_kernel_lost(self) -> None:
        """The kernel has ended, or is being replaced. Its variables are lost."""

    def on_kernel_ready(self) -> None:
        """There is a fresh kernel after one that was lost."""

    def on_session_ended(self) -> None:
        """The session is closed. Nothing follows."""


class KernelFeed:
    """The messages of a session's kernels. Without followers it costs nothing."""

    def __init__(self) -> None:
        self._followers: tuple[Follower, ...] = ()
        self._channel: KernelChannel | None = None
        self._subscription: Subscription | None = None
        self._is_lost = False

    @property
    def channel(self) -> KernelChannel:
        """The channel of the present kernel. Raises ChannelClosed if there is none."""
        if self._channel is None:
            raise ChannelClosed("the kernel has ended")
        return self._channel

    @contextlib.contextmanager
    def followed(self, follower: Follower) -> Iterator[None]:
        """Call the follower until the block is left."""
        self._followers += (follower,)
        self._subscribe()
        try:
            yield
        finally:
            self._followers = tuple(each for each in self._followers if each is not follower)
            if not self._followers:
                self._unsubscribe()

    def connect(self, channel: KernelChannel) -> None:
        """Follow this kernel from now on."""
        self._channel = channel
        self._subscribe()
        if self._is_lost:
            self._is_lost = False
            for follower in self._followers:
                follower.on_kernel_ready()

    def disconnect(self, *, lost: bool) -> None:
        """Leave the present kernel.

        Args:
            lost: its variables are. Otherwise the next kernel has them.
        """
        self._unsubscribe()
        self._channel = None
        if lost and not self._is_lost:
            self._is_lost = True
            for follower in self._followers:
                follower.on_kernel_lost()

    def end(self) -> None:
        """The session has ended."""
        self._unsubscribe()
        self._channel = None
        for follower in self._followers:
            follower.on_session_ended()
        self._followers = ()

    def _subscribe(self) -> None:
        if self._channel is None or self._subscription is not None or not self._followers:
            return
        channel = self._channel
        self._subscription = subscription = channel.subscribe(self._on_message)

        def on_closed(_: asyncio.Future[str]) -> None:
            if self._subscription is subscription:  # it was not us: the kernel has ended
                self.disconnect(lost=True)

        subscription.closed.add_done_callback(on_closed)

    def _unsubscribe(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            subscription.close("nobody follows the kernel")

    def _on_message(self, message: Incoming) -> None:
        for follower in self._followers:
            follower.on_message(message)
