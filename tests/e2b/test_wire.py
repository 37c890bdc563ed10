"""The wire of port 49983 below E2B's clients: protobuf, compression, timeouts, garbage, other tenants."""

from __future__ import annotations

import gzip
import http.client
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from struct import pack, unpack_from
from typing import Any
from urllib.parse import urlsplit

import kernelbroker.sync
import pytest
from kernelbroker_server.e2b.envd import messages

from tests.e2e.support import DEADLINE_S, BrokerProcess, whole_system

pytestmark = whole_system


@dataclass
class Wire:
    """Calls port 49983 of one sandbox."""

    broker: BrokerProcess
    sandbox_id: str

    def send(
        self, path: str, body: bytes = b"", kind: str = "application/json", **headers: str
    ) -> tuple[int, str, bytes]:
        """Returns the status, the type and the body of the answer. `_` in a header's name is a dash."""
        connection = http.client.HTTPConnection(urlsplit(self.broker.url).netloc, timeout=60)
        sent = {
            "Content-Type": kind,
            "X-API-Key": self.broker.token,
            "E2b-Sandbox-Id": self.sandbox_id,
            "E2b-Sandbox-Port": "49983",
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        connection.request("POST", path, body, sent)
        answer = connection.getresponse()
        try:
            return answer.status, answer.headers.get("Content-Type", ""), answer.read()
        finally:
            connection.close()

    def error(self, path: str, body: bytes = b"", **options: Any) -> tuple[int, str]:
        """The status of an answer, and the code in it, also at the end of a stream."""
        status, kind, data = self.send(path, body, **options)
        if kind.startswith("application/connect+"):
            return status, str(envelopes(data)[-1][1]["error"]["code"])
        return status, str(json.loads(data)["code"])


def envelopes(data: bytes) -> list[tuple[int, Any]]:
    """The flags and messages of a stream; the end is decoded."""
    found, offset = [], 0
    while offset < len(data):
        flags, size = unpack_from("!BI", data, offset)
        message: Any = data[offset + 5 : offset + 5 + size]
        found.append((flags, json.loads(message) if flags & 2 else message))
        offset += 5 + size
    return found


def framed(message: bytes, flags: int = 0) -> bytes:
    return pack("!BI", flags, len(message)) + message


@pytest.fixture(scope="module")
def wire(e2b_broker: BrokerProcess) -> Iterator[Wire]:
    """A session of our own SDK, which is a sandbox for E2B's clients as well."""
    with (
        kernelbroker.sync.connect(e2b_broker.url, e2b_broker.token) as client,
        client.session() as session,
    ):
        yield Wire(e2b_broker, session.session_id)


def test_calls_are_made_in_protobuf(wire: Wire) -> None:
    """Unary and streaming calls take and give binary messages as they do JSON."""
    request = messages.encode("filesystem.MakeDirRequest", {"path": "p"}, binary=True)
    status, kind, data = wire.send(
        "/filesystem.Filesystem/MakeDir", request, kind="application/proto"
    )
    made = messages.decode("filesystem.MakeDirResponse", data, binary=True)
    assert (status, kind) == (200, "application/proto")
    assert (made["entry"]["path"], made["entry"]["type"]) == (
        "/home/user/p",
        "FILE_TYPE_DIRECTORY",
    )
    command = {"process": {"cmd": "printf", "args": ["a\\nb"]}, "stdin": False}
    request = framed(messages.encode("process.StartRequest", command, binary=True))
    status, kind, data = wire.send(
        "/process.Process/Start", request, kind="application/connect+proto"
    )
    *parts, (flags, end) = envelopes(data)
    events = [
        messages.decode("process.StartResponse", part, binary=True)["event"] for _, part in parts
    ]
    assert (status, kind) == (200, "application/connect+proto")
    assert next(iter(events[0])) == "start" and events[0]["start"]["pid"] > 0
    assert events[1] == {"data": {"stdout": "YQpi"}}
    assert events[-1]["end"]["exited"] is True
    assert (flags, end) == (2, {})


def test_requests_may_be_compressed(wire: Wire) -> None:
    """gzip is taken for a unary body and for messages of a stream; a bomb is refused."""
    body = gzip.compress(b'{"path": "/tmp"}')
    status, _, _ = wire.send("/filesystem.Filesystem/Stat", body, Content_Encoding="gzip")
    assert status == 200
    command = json.dumps({"process": {"cmd": "true"}}).encode()
    status, _, data = wire.send(
        "/process.Process/Start",
        framed(gzip.compress(command), flags=1),
        kind="application/connect+json",
        Connect_Content_Encoding="gzip",
    )
    assert status == 200 and envelopes(data)[-1] == (2, {})
    bomb = gzip.compress(b'{"path": "' + b"x" * 20_000_000 + b'"}')
    assert wire.error("/filesystem.Filesystem/Stat", bomb, Content_Encoding="gzip") == (
        429,
        "resource_exhausted",
    )
    assert wire.error("/filesystem.Filesystem/Stat", body, Content_Encoding="br") == (
        501,
        "unimplemented",
    )


@pytest.mark.parametrize(
    ("path", "body", "options", "expected"),
    [
        ("/filesystem.Filesystem/Stat", b"{", {}, (400, "invalid_argument")),
        ("/filesystem.Filesystem/Stat", b'{"path": 5}', {}, (400, "invalid_argument")),
        ("/filesystem.Filesystem/Stat", b'{"path": "\\u0000"}', {}, (400, "invalid_argument")),
        ("/filesystem.Filesystem/Stat", b"[" * 9999, {}, (400, "invalid_argument")),
        (
            "/filesystem.Filesystem/Stat",
            b"\xff\xff",
            {"kind": "application/proto"},
            (400, "invalid_argument"),
        ),
        ("/filesystem.Filesystem/Stat", b"", {"kind": "text/plain"}, (400, "invalid_argument")),
        ("/filesystem.Filesystem/Nothing", b"{}", {}, (501, "unimplemented")),
        ("/process.Process/Start", b"{}", {}, (400, "invalid_argument")),
        (
            "/process.Process/Start",
            b"\0\0",
            {"kind": "application/connect+json"},
            (200, "invalid_argument"),
        ),
        (
            "/process.Process/Start",
            b"",
            {"kind": "application/connect+json"},
            (200, "invalid_argument"),
        ),
        (
            "/process.Process/Start",
            framed(b"{}"),
            {"kind": "application/connect+json"},
            (200, "invalid_argument"),
        ),
        (
            "/process.Process/StreamInput",
            framed(b'{"data": {"input": {"stdin": "eA=="}}}'),
            {"kind": "application/connect+json"},
            (200, "invalid_argument"),
        ),
        ("/process.Process/SendInput", b"{}", {}, (400, "invalid_argument")),
        (
            "/process.Process/SendSignal",
            b'{"process": {"tag": "no"}, "signal": "SIGNAL_SIGKILL"}',
            {},
            (404, "not_found"),
        ),
        (
            "/filesystem.Filesystem/GetWatcherEvents",
            b'{"watcherId": "no"}',
            {},
            (404, "not_found"),
        ),
        (
            "/filesystem.Filesystem/Stat",
            b"{}",
            {"Authorization": "Basic cm9vdDo="},
            (400, "invalid_argument"),
        ),
        (
            "/filesystem.Filesystem/Stat",
            b"{}",
            {"Connect_Timeout_Ms": "soon"},
            (400, "invalid_argument"),
        ),
    ],
)
def test_garbage_gets_an_error_of_the_protocol(
    wire: Wire, path: str, body: bytes, options: dict[str, Any], expected: tuple[int, str]
) -> None:
    """Whatever is sent, the answer is an error of Connect, at once."""
    assert wire.error(path, body, **options) == expected


def test_files_refuse_garbage(wire: Wire) -> None:
    """`/files` names what is wrong with a body or a path, and leaves no file behind."""
    form = "multipart/form-data; boundary=b"
    part = b'--b\r\nContent-Disposition: form-data; name="file"; filename="half"\r\n\r\nhal'
    cases = [
        wire.send("/files?path=", b"x", kind="application/octet-stream"),
        wire.send("/files?path=a%00b", b"x", kind="application/octet-stream"),
        wire.send("/files", b"x", kind="application/octet-stream"),
        wire.send("/files?path=f", b"x", kind="multipart/form-data"),
        wire.send("/files", b"no multipart", kind=form),
        wire.send("/files", part, kind=form),
        wire.send("/files?path=f", b"no gzip", kind="a/b", Content_Encoding="gzip"),
        wire.send("/files?path=f", gzip.compress(b"x" * 999)[:-9], Content_Encoding="gzip"),
        wire.send("/files?path=f&username=root", b"x"),
    ]
    assert [status for status, _, _ in cases] == [400] * len(cases)
    for _, _, data in cases:
        error = json.loads(data)
        assert error["code"] == 400 and error["message"]
    for path in ("half", "f"):
        body = json.dumps({"path": path}).encode()
        assert wire.error("/filesystem.Filesystem/Stat", body) == (404, "not_found")


def test_a_timeout_ends_the_call_and_the_process(wire: Wire) -> None:
    """The time that the client gives a command is a limit for the process as well."""
    command = {"process": {"cmd": "sleep", "args": ["1000"]}, "tag": "limited"}
    request = framed(json.dumps(command).encode())
    assert wire.error(
        "/process.Process/Start",
        request,
        kind="application/connect+json",
        Connect_Timeout_Ms="500",
    ) == (200, "deadline_exceeded")
    deadline = time.monotonic() + DEADLINE_S
    while b"limited" in wire.send("/process.Process/List", b"{}")[2]:
        assert time.monotonic() < deadline, "the process goes on"


def test_keepalives_come_while_a_process_is_silent(wire: Wire) -> None:
    """A client that asks for keepalives gets them."""
    command = {"process": {"cmd": "sleep", "args": ["12"]}, "stdin": False}
    status, _, data = wire.send(
        "/process.Process/Start",
        framed(json.dumps(command).encode()),
        kind="application/connect+json",
        Keepalive_Ping_Interval="1",
    )
    events = [json.loads(part).get("event") for flags, part in envelopes(data) if not flags]
    assert status == 200 and {"keepalive": {}} in events


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"X_API_Key": "wrong"}, 401),
        ({"X_API_Key": "", "X_Access_Token": "kbs_default_" + "0" * 64}, 401),
        ({"E2b_Sandbox_Id": "another"}, 502),
    ],
)
def test_strangers_reach_nothing(wire: Wire, headers: dict[str, str], status: int) -> None:
    """Without a token there is nothing; a sandbox that is not there is one that has ended."""
    got, _, data = wire.send("/files?path=x", b"{}", kind="a/b", **headers)
    assert (got, json.loads(data)["code"]) == (status, status)
    for path in ("/process.Process/List", "/filesystem.Filesystem/Stat"):
        got, _, data = wire.send(path, b"{}", **headers)
        answer = json.loads(data)
        if status == 401:
            assert (got, answer["code"]) == (401, 401)
        else:
            assert (got, answer["code"]) == (503, "unavailable")
            assert "was not found" in answer["message"], "by which E2B's clients know it"
