"""The relay from the kernel to the broker: numbers, acknowledgements, and brokers that come and go."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from jupyter_client.session import DELIM
from kernelbroker_kernel import outbox
from kernelbroker_kernel.relay import Relay
from kernelbroker_server.kernels.framing import decode_frame


class Channel:
    """A channel of the kernel, with messages that wait."""

    def __init__(self, name: str) -> None:
        self.channel = name
        self.socket = self
        self.callback: Callable[[Any, list[bytes]], None] | None = None

    def on_recv_stream(self, callback: Callable[[Any, list[bytes]], None]) -> None:
        self.callback = callback

    def stop_on_recv(self) -> None:
        self.callback = None

    def recv_multipart(self, _flags: int) -> list[bytes]:
        raise zmq.ZMQError

    def put(self, text: str) -> None:
        assert self.callback is not None, "the kernel is held back"
        parts = [b'{"msg_type": "stream"}', b"{}", b"{}", json.dumps({"text": text}).encode()]
        self.callback(self, [b"topic", DELIM, b"", *parts])


class Broker:
    """Reads what the gateway sends."""

    def __init__(self) -> None:
        self.data = b""

    def send(self, data: bytes) -> None:
        self.data += data

    def read(self) -> list[Any]:
        """The texts of the messages, and the hello as a dictionary."""
        found = []
        while self.data:
            kind, size, start = self.data[0], self.data[1], 2
            if size == 126:
                size, start = int.from_bytes(self.data[2:4], "big"), 4
            elif size == 127:
                size, start = int.from_bytes(self.data[2:10], "big"), 10
            frame, self.data = self.data[start : start + size], self.data[start + size :]
            if kind == 0x81:
                found.append(json.loads(frame))
            else:
                found.append(decode_frame(frame).content_as(dict)["text"])
        return found


def relay_of(iopub: Channel) -> Relay:
    return Relay({"iopub": iopub})


async def written() -> None:
    """Let the gateway write what waits."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


async def test_another_broker_gets_what_was_not_acknowledged() -> None:
    """In order, once, and with what came while there was no broker."""
    iopub, first, second = Channel("iopub"), Broker(), Broker()
    relay = relay_of(iopub)
    relay.connect(first.send)
    for text in "abc":
        iopub.put(text)
    await written()
    assert first.read() == ["a", "b", "c"]
    relay.acknowledge(1)
    relay.disconnect(first.send)
    iopub.put("d")
    await written()
    iopub.put("e")  # waits to be written when the next broker comes
    relay.received = 5
    relay.join(second.send, after=1)
    await written()
    assert second.read() == [{"received": 5, "first": 2}, "b", "c", "d", "e"]
    relay.disconnect(first.send)  # it closes late
    iopub.put("f")
    await written()
    assert second.read() == ["f"]
    assert first.read() == []


async def test_a_broker_that_needs_nothing_gets_nothing() -> None:
    """Of an idle sandbox, what came before is forgotten."""
    iopub, broker = Channel("iopub"), Broker()
    relay = relay_of(iopub)
    iopub.put("a")
    relay.join(broker.send, after=None)
    iopub.put("b")
    await written()
    assert broker.read() == [{"received": 0, "first": 2}, "b"]


async def test_what_was_acknowledged_is_gone() -> None:
    """The broker is told that messages that it asks for are missing."""
    iopub, broker = Channel("iopub"), Broker()
    relay = relay_of(iopub)
    for text in "abc":
        iopub.put(text)
    relay.acknowledge(2)
    relay.join(broker.send, after=0)
    assert broker.read() == [{"received": 0, "first": 3}, "c"]
    relay.acknowledge(100)  # more than there are
    relay.join(broker.send, after=3)
    assert broker.read() == [{"received": 0, "first": 4}]


async def test_the_kernel_is_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """While too much is not acknowledged its output is not read; then it is read again."""
    monkeypatch.setattr(outbox, "MAX_BYTES", 1000)
    iopub, broker = Channel("iopub"), Broker()
    relay = relay_of(iopub)
    relay.connect(broker.send)
    while iopub.callback is not None:
        iopub.put("x" * 100)
    assert relay.is_held
    await written()
    sent = len(broker.read())
    assert 3 <= sent <= 6
    relay.acknowledge(1)
    assert not relay.is_held
    iopub.put("more")
    await written()
    assert broker.read() == ["more"]
