"""Processes beside the kernel as use cases: the policy, what keeps a session awake, streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from kernelbroker.protocol.errors import (
    BadRequest,
    ConfirmationRequired,
    PolicyRefused,
    TooManyRequests,
)
from kernelbroker_server.backends.base import Isolation
from kernelbroker_server.kernels.frames import MAX_FRAME_BYTES, Frame, frames
from kernelbroker_server.kernels.redaction import Redactor
from kernelbroker_server.kernels.transfer import TransferFailed
from kernelbroker_server.service import processes
from kernelbroker_server.service.policy import Policies, Policy
from kernelbroker_server.service.processes import Command, Ended, Output, TerminalSize
from kernelbroker_server.sessions.streams import MAX_STREAMS
from kernelbroker_server.telemetry.events import ProcessStarted, TelemetryEvent

from tests.service.test_sleeper import Clock, Sandboxes, fall_asleep, sleepy
from tests.support.backend import FakeBackend
from tests.support.waiting import until
from tests.support.world import world


@pytest.fixture
def sandboxes(backend: FakeBackend) -> Sandboxes:
    return Sandboxes(backend)


@pytest.fixture
def clock() -> Clock:
    return Clock()


RUNS = {"pid": 7, "cmd": "python", "args": ["-m", "http.server"], "env": {}, "stdin": False}


@pytest.mark.parametrize(
    ("mode", "command", "error"),
    [
        ("block", Command(cmd="/bin/bash", args=["-l", "-c", "rm -rf /"]), PolicyRefused),
        ("block", Command(cmd="rm", args=["-rf", "/"]), PolicyRefused),
        ("confirm", Command(cmd="sh", args=["-c", "rm -rf /"]), ConfirmationRequired),
        ("block", Command(cmd="bash", size=TerminalSize()), PolicyRefused),
        ("block", Command(cmd="bash", stdin=True), PolicyRefused),
        ("off", Command(cmd=""), BadRequest),
        ("off", Command(cmd="a\0b"), BadRequest),
        ("off", Command(cmd="a", env={"A=B": "1"}), BadRequest),
        ("off", Command(cmd="a", size=TerminalSize(0, 1)), BadRequest),
    ],
)
@pytest.mark.parametrize("template", ["default", "auto"])
async def test_a_process_is_refused_before_it_starts(
    backend: FakeBackend, mode: Any, command: Command, error: type[Exception], template: str
) -> None:
    """The policy for code applies to commands; the refusal is an event, without the command itself."""
    seen: list[TelemetryEvent] = []
    backend.isolation = Isolation.BUBBLEWRAP  # else no session is routed
    policies = Policies({"default": Policy(mode)})
    async with world(backend, policies=policies, observer=seen.append) as made:
        session = await made.open("s", template=template)
        with pytest.raises(error):
            async with made.service.processes.start(session, command):
                pass
        (started,) = [event for event in seen if isinstance(event, ProcessStarted)]
        assert started.outcome == error.code  # type: ignore[attr-defined]
        assert "-rf" not in repr(started)


@pytest.mark.parametrize("template", ["default", "auto"])
async def test_input_is_refused_where_code_is_assessed(backend: FakeBackend, template: str) -> None:
    """What a process reads cannot be assessed, so that it gets none."""
    backend.isolation = Isolation.BUBBLEWRAP
    async with world(backend, policies=Policies({"default": Policy("block")})) as made:
        session = await made.open("s", template=template)
        with pytest.raises(PolicyRefused):
            await made.service.processes.feed(session, 7, b"rm -rf /\n")


async def test_a_process_keeps_its_session_awake(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """A session with a running process does not fall asleep, and says why, until the process has ended."""
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        (sandbox,) = backend.live.values()
        sandbox.gateway.processes = [RUNS]
        clock.now += 61
        await until(lambda: bool(session.sleeping.kept_awake_by))
        (why,) = session.sleeping.kept_awake_by
        assert (why.name, why.reason) == (
            "<process>",
            "process 7 still runs: python -m http.server",
        )
        assert sandboxes.saves == 0 and session.state == "idle"
        await until(lambda: not made.service.sleeper._saving)
        sandbox.gateway.processes = []
        await fall_asleep(made, session, clock)


async def test_a_stream_keeps_its_session_in_use(
    backend: FakeBackend, sandboxes: Sandboxes, clock: Clock
) -> None:
    """While a stream is open the session neither sleeps nor idles out; streams are bounded."""
    async with sleepy(backend, clock) as made:
        session = await made.open("s")
        with session.streams.one():
            clock.now += 601
            made.registry.close_expired()
            assert session.sleeping.due_at is None and session.closed_reason is None
        clock.now += 59
        made.registry.close_expired()
        assert session.closed_reason is None, "the end of the stream was a use"
        session.streams._count = MAX_STREAMS
        with pytest.raises(TooManyRequests), session.streams.one():
            pass
        session.streams._count = 0


class Answer:
    """The answer of a gateway, in these pieces."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = pieces

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        for piece in self.pieces:
            yield piece


async def test_frames_are_taken_apart_wherever_they_are_cut() -> None:
    """A frame may come in any pieces; one that is cut off or too large is an error."""
    data = b"o\0\0\0\2hik\0\0\0\0x\0\0\0\1!"
    expected = [Frame(b"o", b"hi"), Frame(b"k", b""), Frame(b"x", b"!")]
    pieces = [data[n : n + 1] for n in range(len(data))]
    for answer in (Answer(data), Answer(*pieces)):
        assert [each async for each in frames(answer)] == expected  # type: ignore[arg-type]
    for broken in (data[:-1], b"o" + (MAX_FRAME_BYTES + 1).to_bytes(4, "big")):
        with pytest.raises(TransferFailed):
            [each async for each in frames(Answer(broken))]  # type: ignore[arg-type]


async def test_secrets_are_masked_in_output() -> None:
    """A secret of the session is masked, also if it comes in pieces; other bytes stay as they are."""

    async def received() -> AsyncGenerator[tuple[bytes, bytes], None]:
        yield b"o", b"\xff\x00 gehe"
        yield b"o", b"im\xc3\xa4 "
        yield b"e", b"geheim"
        yield b"x", b'{"exit_code": 0, "exited": true}'

    redactor = Redactor([processes._latin("geheimä")])
    events = [each async for each in processes._events(received(), redactor)]
    text = b"".join(e.data for e in events if isinstance(e, Output) and e.stream == "stdout")
    errors = b"".join(e.data for e in events if isinstance(e, Output) and e.stream == "stderr")
    assert (text, errors) == (b"\xff\x00 *** ", b"geheim")
    assert events[-1] == Ended(0, exited=True)
