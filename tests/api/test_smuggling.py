"""Requests that two HTTP parsers could read differently, sent byte by byte.

Each attempt carries a whole second request where a body, or nothing, belongs. If the broker performed
it, a proxy in front could be made to let through what it never saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket

import pytest

from tests.support.http import TOKEN, Api
from tests.support.waiting import DEADLINE_S

AUTH = f"Authorization: Bearer {TOKEN}\r\n".encode()
SMUGGLED = b"DELETE /api/v1/sessions/victim HTTP/1.1\r\nHost: x\r\n" + AUTH + b"\r\n"
SIZE = b"%d" % len(SMUGGLED)
POST = b"POST /api/v1/assess HTTP/1.1\r\nHost: x\r\n" + AUTH
PUT = b"PUT /api/v1/sessions/victim/files/x HTTP/1.1\r\nHost: x\r\n" + AUTH
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY_CHUNKED = b"0\r\n\r\n"

REFUSED = {
    "lengths that differ": b"Content-Length: 0\r\nContent-Length: " + SIZE + b"\r\n\r\n",
    "lengths that differ, smaller last": b"Content-Length: %b\r\nContent-Length: 0\r\n\r\n" % SIZE,
    "equal lengths": b"Content-Length: %b\r\nContent-Length: %b\r\n\r\n" % (SIZE, SIZE),
    "a list of lengths": b"Content-Length: %b, %b\r\n\r\n" % (SIZE, SIZE),
    "a signed length": b"Content-Length: +%b\r\n\r\n" % SIZE,
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a hexadecimal length": b"Content-Length: 0x10\r\n\r\n",
    "a length with an underscore": b"Content-Length: 1_0\r\n\r\n",
    "a folded length": b"Content-Length: 0\r\n 5\r\n\r\n",
    "a length of 30 digits": b"Content-Length: %b\r\n\r\n" % (b"9" * 30),
    "length, then chunked": b"Content-Length: %b\r\n" % SIZE + CHUNKED + EMPTY_CHUNKED,
    "chunked, then length": b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n"
    + EMPTY_CHUNKED,
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n\r\n" + EMPTY_CHUNKED,
    "chunked twice": b"Transfer-Encoding: chunked, chunked\r\n\r\n" + EMPTY_CHUNKED,
    "two codings": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + EMPTY_CHUNKED,
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + EMPTY_CHUNKED,
    "two coding headers": b"Transfer-Encoding: identity\r\n" + CHUNKED + EMPTY_CHUNKED,
    "a coding after a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n" + EMPTY_CHUNKED,
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + EMPTY_CHUNKED,
    "a header without a colon": b"Transfer-Encoding chunked\r\n\r\n" + EMPTY_CHUNKED,
    "a carriage return in a value": b"X: a\rContent-Length: 5\r\n\r\n",
    "a NUL in a value": b"X: a\0b\r\n\r\n",
    "a chunk extension": CHUNKED + b"2;a=b\r\n{}\r\n0\r\n\r\n",
    "a chunk of endless size": CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n",
    "a chunk of negative size": CHUNKED + b"-1\r\n",
    "a chunk size with 0x": CHUNKED + b"0x2\r\n{}\r\n0\r\n\r\n",
    "a chunk size with an underscore": CHUNKED + b"0_2\r\n{}\r\n0\r\n\r\n",
    "a chunk size that ends with LF": CHUNKED + b"2\n{}\r\n0\r\n\r\n",
    "a chunk that ends with LF": CHUNKED + b"2\r\n{}\n0\r\n\r\n",
    "a chunk that is too long": CHUNKED + b"1\r\n{}\r\n0\r\n\r\n",
    "trailers": CHUNKED + b"2\r\n{}\r\n0\r\nContent-Length: 5\r\n\r\n",
}
"""What follows the request line, `Host` and `Authorization`, and precedes the second request."""


async def statuses(api: Api, data: bytes, expected: int) -> list[int]:
    """Send it, and read as many answers as expected, or all that come before the connection ends."""
    loop = asyncio.get_running_loop()
    answer = b""
    # A plain socket gives what came before a reset; asyncio's streams do not.
    with socket.socket() as client:
        client.setblocking(False)
        async with asyncio.timeout(DEADLINE_S):
            await loop.sock_connect(client, ("127.0.0.1", api.port))
            await loop.sock_sendall(client, data)
            with contextlib.suppress(ConnectionError):
                while len(found := _statuses(answer)) < expected:
                    if not (more := await loop.sock_recv(client, 64 * 1024)):
                        break
                    answer += more
    return found


def _statuses(answer: bytes) -> list[int]:
    """The status codes of the answers of which all has come."""
    found = []
    while b"\r\n\r\n" in answer:
        head, _, answer = answer.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: (\d+)", head)
        size = int(length[1]) if length else 0
        if len(answer) < size:
            break
        answer = answer[size:]
        found.append(int(head.split()[1]))
    return found


async def is_open(api: Api) -> bool:
    return (await api.ask("GET", "/api/v1/sessions/victim")).status == 200


@pytest.mark.parametrize("start", [POST, PUT], ids=["json", "upload"])
@pytest.mark.parametrize("framing", REFUSED.values(), ids=REFUSED)
async def test_ambiguous_framing_is_refused(api: Api, start: bytes, framing: bytes) -> None:
    """A request with ambiguous framing gets one refusal, and the connection is closed."""
    await api.world.open("victim")
    assert await statuses(api, start + framing + SMUGGLED, 3) == [400]
    assert await is_open(api)


ACCEPTED = {
    "a length": b'Content-Length: 12\r\n\r\n{"code":"1"}',
    "chunked": CHUNKED + b"c\r\n" + b'{"code":"1"}' + b"\r\n" + EMPTY_CHUNKED,
    "chunked, in capitals": b"Transfer-Encoding: CHUNKED\r\n\r\n" + b"c\r\n"
    b'{"code":"1"}\r\n' + EMPTY_CHUNKED,
    "lines that end with LF": b'Content-Length: 12\n\n{"code":"1"}',
}


@pytest.mark.parametrize("framing", ACCEPTED.values(), ids=ACCEPTED)
async def test_clear_pipelined_requests_are_performed(api: Api, framing: bytes) -> None:
    """As a control, a second request with clear framing is performed."""
    await api.world.open("victim")
    assert await statuses(api, POST + framing + SMUGGLED, 2) == [200, 204]
    assert not await is_open(api)


BODIES = {
    "a route that takes none": b"GET /health/live HTTP/1.1\r\nHost: x\r\n",
    "an unknown path": b"GET /none HTTP/1.1\r\nHost: x\r\n" + AUTH,
    "an unknown method": b"BREW /health HTTP/1.1\r\nHost: x\r\n" + AUTH,
    "a method that the path lacks": b"PATCH /api/v1/assess HTTP/1.1\r\nHost: x\r\n" + AUTH,
    "no token": b"POST /api/v1/assess HTTP/1.1\r\nHost: x\r\n",
    "a WebSocket": b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: aaaaaaaaaaaaaaaaaaaaaa==\r\n"
    + AUTH,
}


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("start", BODIES.values(), ids=BODIES)
async def test_a_request_in_a_body_is_not_performed(api: Api, start: bytes, chunked: bool) -> None:
    """A body is read or dropped as a body, also on paths without bodies."""
    await api.world.open("victim")
    framing = b"Content-Length: %b\r\n\r\n%b" % (SIZE, SMUGGLED)
    if chunked:
        framing = CHUNKED + b"%x\r\n%b\r\n0\r\n\r\n" % (len(SMUGGLED), SMUGGLED)
    end = b"GET /health/live HTTP/1.1\r\nHost: x\r\n\r\n"
    assert await statuses(api, start + framing + end, 1)
    assert await is_open(api)
