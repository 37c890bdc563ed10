"""The relay from the kernel to the broker: numbers, acknowledgements, and brokers that come and go."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import pytest
import zmq
from jupyter_client.session import DELIM
from kernelbroker_kernel import outbox
from kernelbroker_kernel import relay as relay_module
from kernelbroker_kernel.contract import ALL_SENT
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
                found.append(ALL_SENT if frame == ALL_SENT.encode() else json.loads(frame))
            else:
                found.append(decode_frame(frame).content_as(dict)["text"])
        return found


def relay_of(iopub: Channel) -> Relay:
    return Relay({"iopub": iopub})


def held(monkeypatch: pytest.MonkeyPatch) -> tuple[Channel, Broker, Relay]:
    """A relay whose broker has not acknowledged so much that the kernel is held back."""
    monkeypatch.setattr(outbox, "MAX_BYTES", 1000)
    iopub, broker = Channel("iopub"), Broker()
    relay = relay_of(iopub)
    relay.connect(broker.send)
    while iopub.callback is not None:
        iopub.put("x" * 100)
    return iopub, broker, relay


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
    iopub, broker, relay = held(monkeypatch)
    assert relay.is_held
    await written()
    sent = len(broker.read())
    assert 3 <= sent <= 6
    relay.acknowledge(1)
    assert not relay.is_held
    iopub.put("more")
    await written()
    assert broker.read() == ["more"]


async def test_a_kernel_that_ended_is_kept_until_all_is_acknowledged() -> None:
    """Each broker that comes gets the last messages and learns that no other follows."""
    iopub, first, second = Channel("iopub"), Broker(), Broker()
    relay = relay_of(iopub)
    relay.connect(first.send)
    iopub.put("a")
    iopub.put("b")
    assert not relay.is_delivered
    relay.finish()
    relay.finish()  # it is asked again and again
    assert first.read() == ["a", "b", ALL_SENT]
    relay.acknowledge(1)
    assert not relay.is_delivered
    relay.disconnect(first.send)  # it was killed

    relay.join(second.send, after=1)
    assert second.read() == [{"received": 0, "first": 2}, "b", ALL_SENT]
    relay.acknowledge(2)
    assert relay.is_delivered


async def test_a_kernel_that_the_broker_ended_keeps_nothing() -> None:
    """Nobody waits for its messages."""
    iopub = Channel("iopub")
    relay = relay_of(iopub)
    iopub.put("a")
    assert not relay.is_delivered
    relay.forsake()
    assert relay.is_delivered


async def test_a_kernel_that_ended_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an acknowledgement frees room for comes from no channel that has ended."""
    iopub, broker, relay = held(monkeypatch)
    relay.finish()
    relay.acknowledge(1)
    assert iopub.callback is None
    *_, last = broker.read()
    assert last == ALL_SENT


@pytest.mark.parametrize("connected", [True, False])
async def test_a_kernel_that_ended_is_kept_as_long_as_somebody_comes_for_it(
    connected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each acknowledgement and each broker has its time anew; after it the gateway gives up."""
    monkeypatch.setattr(relay_module, "_ACKNOWLEDGE_S", 0.3 if connected else 60)
    alone = 60 if connected else 0.3
    iopub, broker = Channel("iopub"), Broker()
    relay = relay_of(iopub)
    for text in "abcd":
        iopub.put(text)
    if connected:
        relay.connect(broker.send)
    waiting = asyncio.create_task(relay.delivered(alone))
    for number in (1, 2, 3):
        await asyncio.sleep(0.2)
        assert not waiting.done()
        relay.acknowledge(number)
    began = time.monotonic()
    await asyncio.wait_for(waiting, 5)
    assert time.monotonic() - began >= 0.25
    assert not relay.is_delivered
    again = asyncio.create_task(relay.delivered(alone))
    relay.acknowledge(4)
    await asyncio.wait_for(again, 5)
    assert relay.is_delivered
