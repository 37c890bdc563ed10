"""Rules for every request: the token, the request id, errors as JSON, bounded bodies."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from kernelbroker.protocol.messages import ErrorReply
from kernelbroker_server.backends.base import LaunchError
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.telemetry.logs import TextFormatter

from tests.support.backend import FakeBackend, FakeSandbox
from tests.support.http import TOKEN, Api, Exchange, serving
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import world

PATHS = [
    ("POST", "/api/v1/exec"),
    ("GET", "/api/v1/sessions"),
    ("POST", "/api/v1/sessions"),
    ("DELETE", "/api/v1/sessions/x"),
    ("GET", "/api/v1/workspaces"),
    ("DELETE", "/api/v1/workspaces/x"),
    ("GET", "/api/v1/pool/status"),
    ("GET", "/api/v1/ws"),
    ("GET", "/api/v1/no/such/path"),
    ("GET", "/"),
]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Bearer "},
        {"Authorization": "token the-token"},
        {"Authorization": "the-token"},
        {"Authorization": "Bearer the-token-and-more"},
        {"Authorization": "Bearer \xff"},
    ],
)
async def test_a_request_without_a_token_gets_401(
    api: Api, method: str, path: str, headers: dict[str, str]
) -> None:
    """A request without a token gets 401 with the header that says how to authenticate."""
    answer = await api.ask(method, path, token=None, headers=headers)
    assert answer.status == 401
    assert answer.error["code"] == "unauthorized"
    assert "Authorization: Bearer" in answer.error["message"]
    assert answer.headers["www-authenticate"] == "Bearer"
    assert api.world.registry.list() == []


async def test_health_needs_no_token(api: Api) -> None:
    """/health needs no token, and reports the version and the isolation."""
    answer = await api.ask("GET", "/health", token=None)
    assert answer.status == 200
    assert answer.json["status"] == "ok"
    assert answer.json["isolation"] == "process"
    assert set(answer.json["pool"]) == {
        "total_containers",
        "idle_containers",
        "busy_containers",
        "starting_containers",
        "pending_requests",
    }


async def test_pool_status_counts_leased_sandboxes(api: Api) -> None:
    """The pool's numbers follow the leases; each template has more detailed numbers."""
    session = await api.world.open()
    answer = await api.ask("GET", "/api/v1/pool/status")
    assert answer.json["busy_containers"] == 1
    default = answer.json["templates"]["default"]
    assert default["busy_containers"] == 1
    assert default["removing_containers"] == 0
    assert (default["spare_containers"], default["max_containers"]) == (1, 4)
    assert 0 < default["utilization"] <= 1
    assert default["last_launch_failure"] is None
    assert (default["failed_launches"], default["back_off_s"]) == (0, 0)
    await session.close("done")


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (
            "/sessions/mine/exec",
            {"template": "other"},
            400,
            "keeps its template and its workspace",
        ),
        ("/sessions/mine/exec", {"workspace": "mine"}, 400, "keeps its template and its workspace"),
        ("/exec", {"session_id": "mine", "workspace": "other"}, 409, "has the workspace 'mine'"),
        ("/exec", {"session_id": "mine", "template": "other"}, 400, "no template 'other'"),
        ("/exec", {"session_id": "mine", "template": ""}, 400, "no template ''"),
        ("/sessions", {"session_id": "mine", "env": {"A": "2"}}, 409, "another env"),
        ("/sessions", {"session_id": "mine", "secrets": {"S": "2"}}, 409, "another secrets"),
        ("/sessions", {"session_id": "mine", "cwd": "b"}, 409, "another cwd"),
    ],
)
async def test_different_options_for_an_open_session_are_refused(
    api: Api, path: str, body: dict[str, Any], status: int, message: str
) -> None:
    """Different values for fixed options of an open session are refused."""
    await api.world.open("mine", env={"A": "1"}, secrets={"S": "secret"}, cwd="a")
    if path.endswith("exec"):
        body = {"code": "1", **body}
    answer = await api.ask("POST", f"/api/v1{path}", body)
    assert answer.status == status
    assert message in answer.error["message"]
    assert "secret" not in answer.error["message"].replace("secrets", "")
    assert api.world.registry.get("mine").executions == {}


async def test_equal_options_reuse_an_open_session(api: Api) -> None:
    """A session is reused if the options are equal or omitted."""
    same = {"env": {"A": "1"}, "secrets": {"S": "2"}, "cwd": "a"}
    session = await api.world.open("mine", **same)
    for asked in ({}, same):
        answer = await api.ask("POST", "/api/v1/sessions", {"session_id": "mine", **asked})
        assert answer.status == 200
    for asked in ({}, {"template": "default", "workspace": "mine"}):
        body = {"code": "1", "session_id": "mine", **asked}
        assert (await api.ask("POST", "/api/v1/exec", body)).status == 200
    session.options.template = (
        "another"  # as if there were another one, which need not be said again
    )
    pools = api.world.registry.pools
    assert isinstance(pools, dict)
    pools["another"] = api.world.pool
    body = {"code": "1", "session_id": "mine"}
    assert (await api.ask("POST", "/api/v1/exec", body)).status == 200
    assert len(session.executions) == 3


async def test_too_large_metadata_is_refused(api: Api) -> None:
    """Metadata over the limit is refused, and changes nothing."""
    most, more = ({"a": "x" * (16 * 1024 - 8 + extra)} for extra in (0, 1))
    opened = await api.ask("POST", "/api/v1/sessions", {"session_id": "mine", "metadata": most})
    assert (opened.status, opened.json["metadata"]) == (201, most)
    for method, path, body in (
        ("POST", "/api/v1/sessions", {"metadata": more}),
        ("PATCH", "/api/v1/sessions/mine", {"metadata": more, "idle_timeout": 7}),
    ):
        answer = await api.ask(method, path, body)
        assert answer.status == 400
        assert "16,385 bytes as JSON; 16,384 is the limit" in answer.error["message"]
    session = api.world.registry.get("mine")
    assert session.options.metadata == most
    assert session.idle_timeout != 7
    assert api.world.registry.list() == [session]


async def test_pool_status_reports_failed_launches(backend: FakeBackend) -> None:
    """The pool status has the reason of failed launches and the time of the next attempt."""

    async def fail(_sandbox: FakeSandbox) -> None:
        raise LaunchError("the disk is full")

    backend.on_launch = fail
    async with world(backend) as w, serving(w) as api:
        await until(lambda: w.pool.last_failure)
        answer = await api.ask("GET", "/api/v1/pool/status")
        default = answer.json["templates"]["default"]
        assert default["last_launch_failure"] == "the disk is full"
        assert default["failed_launches"] >= 1
        health = await api.ask("GET", "/health")
        assert health.json["last_launch_failure"] == "the disk is full"


@pytest.mark.parametrize("over", ["exec", "sessions", "websocket"])
async def test_openings_without_a_sandbox_are_refused(backend: FakeBackend, over: str) -> None:
    """A client that waits too long gets 503, one beyond the queue 429; both get Retry-After."""
    limits = PoolLimits(min_size=0, max_size=1, max_waiters=1)
    async with world(backend, pool=limits, acquire_timeout=0.5) as w, serving(w) as api:

        async def refusal() -> tuple[str, float]:
            if over == "websocket":
                async with api.socket() as socket:
                    await socket.send("open")
                    reply = await socket.get()
                    assert isinstance(reply, ErrorReply), reply
                    return reply.error.code, reply.error.retry_after or 0
            path, body = f"/api/v1/{over}", {"code": "1"} if over == "exec" else {}
            answer = await api.ask("POST", path, body)
            code = {429: "too_many_requests", 503: "unavailable"}[answer.status]
            assert answer.error["code"] == code
            assert int(answer.headers["retry-after"]) == answer.error["retry_after"]
            return code, answer.error["retry_after"]

        session = await w.open()
        waits = asyncio.create_task(refusal())
        await until(lambda: w.pool.status().pending_requests == 1)
        code, retry_after = await refusal()
        assert code == "too_many_requests"
        assert retry_after >= 1
        code, retry_after = await waits
        assert code == "unavailable"
        assert retry_after >= 1
        await session.close("done")


@pytest.mark.parametrize(
    ("given", "kept"),
    [("my-id:1.2_3", True), ("", False), ("a b", False), ("x" * 65, False), ("a;b", False)],
)
@pytest.mark.parametrize("path", ["/health", "/api/v1/none", "/api/v1/sessions"])
async def test_request_id_is_echoed(api: Api, path: str, given: str, kept: bool) -> None:
    """A safe request id is kept, others are replaced, and every answer has one."""
    answer = await api.ask("GET", path, headers={"X-Request-ID": given})
    echoed = answer.headers["x-request-id"]
    assert (echoed == given) == kept
    assert echoed
    if answer.status >= 400:
        assert answer.error["request_id"] == echoed


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1",
        "/api/v1/none",
        "/api/v1/exec/",
        "/api/v1/sessions/a%2Fb",
        "/api/v1/sessions/a%0Ab",
        "/api/v1/sessions/" + "x" * 65,
        "/api/v1/sessions/%ff",
        "/../../etc/passwd",
    ],
)
async def test_unknown_path_gets_404(api: Api, path: str) -> None:
    """An unknown path is answered with 404 as JSON."""
    answer = await api.ask("GET", path)
    assert answer.status == 404
    assert answer.error["code"] == "not_found"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/v1/exec"),
        ("PUT", "/api/v1/sessions"),
        ("OPTIONS", "/api/v1/sessions"),
        ("POST", "/health"),
        ("BREW", "/health"),
        ("TRACE", "/api/v1/exec"),
    ],
)
async def test_unknown_method_gets_405(api: Api, method: str, path: str) -> None:
    """An unknown method is answered with 405 as JSON, with the methods of the path."""
    answer = await api.ask(method, path)
    assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
    assert answer.error["request_id"]
    allowed = answer.headers["allow"].split(", ")
    assert allowed
    assert method not in allowed
    for each in allowed:
        assert (await api.ask(each, path)).status != 405


@pytest.mark.parametrize("path", ["/api/v1/exec", "/api/v1/sessions"])
@pytest.mark.parametrize(
    "body", [b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"metadata":' + b"[" * 100_000]
)
async def test_malformed_body_gets_400(api: Api, path: str, body: bytes) -> None:
    """A body that is not a JSON object is answered with 400."""
    answer = await api.ask("POST", path, body)
    assert answer.status == 400
    assert answer.error["code"] == "bad_request"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/api/v1/exec", {"code": "1", "tiemout": 3}, "tiemout"),
        ("/api/v1/exec", {"code": "1", "timeout": 0}, "timeout"),
        ("/api/v1/exec", {"code": "1", "timeout": 1e9}, "timeout"),
        ("/api/v1/exec", {"code": "1", "session_id": "../x"}, "session_id"),
        ("/api/v1/exec", {"code": "1", "session_id": "x\n"}, "session_id"),
        ("/api/v1/exec", {"code": "1", "execution_id": ".."}, "execution_id"),
        ("/api/v1/exec", {"code": "1", "on_error": "ignore"}, "on_error"),
        ("/api/v1/exec", {}, "code"),
        ("/api/v1/sessions", {"name": "x"}, "name"),
        ("/api/v1/sessions", {"template": "gpu"}, "gpu"),
        ("/api/v1/sessions", {"env": {"A": 1}}, "env"),
    ],
)
async def test_invalid_fields_are_named(
    api: Api, path: str, body: dict[str, Any], named: str
) -> None:
    """An unknown or invalid field is named, and no session is opened."""
    answer = await api.ask("POST", path, body)
    assert answer.status == 400
    assert named in answer.error["message"]
    assert api.world.registry.list() == []
    assert api.world.pool.status().busy_containers == 0


@pytest.mark.parametrize("size", [3 * 1024**2, 10 * 1024**2])
async def test_body_too_large_is_read_and_refused(api: Api, size: int) -> None:
    """A body slightly over the limit is read to its end, so that the client can read the refusal."""
    answer = await api.ask("POST", "/api/v1/exec", b"x" * size)
    assert answer.status == 413
    assert answer.error["code"] == "too_large"
    assert "connection" not in answer.headers


async def test_body_far_too_large_is_refused_at_once(api: Api) -> None:
    """A body far over the limit is refused before it is sent."""
    answer = await api.ask("POST", "/api/v1/exec", b"", length=1024**3)
    assert answer.status == 413
    assert answer.error["code"] == "too_large"


@pytest.mark.parametrize("length", ["abc", "5,5", "+2", "1_0", "-1", "\xb2", "9" * 5000])
async def test_an_invalid_content_length_gets_400(api: Api, length: str) -> None:
    """An invalid Content-Length is the client's error, not a fault of the broker."""
    head = f"POST /api/v1/sessions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    async with asyncio.timeout(DEADLINE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        writer.write(f"{head}Content-Length: {length}\r\n\r\n{{}}".encode("latin-1"))
        exchange = Exchange(reader, writer)
        await exchange.head()
        assert exchange.status == 400
        exchange.hang_up()


async def test_chunked_body_too_large_is_refused(api: Api) -> None:
    """A chunked body over the limit is refused as well."""
    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    body = chunk * 48 + b"0\r\n\r\n"
    answer = await api.ask("POST", "/api/v1/exec", body, chunked=True)
    assert answer.status == 413
    assert answer.error["code"] == "too_large"


async def test_an_answer_to_an_unread_body_closes_the_connection(api: Api) -> None:
    """An answer that is sent before the body was read announces the end of the connection."""
    limit = (await api.world.open("one")).limits.max_file_bytes
    for method, path, options in [
        ("GET", "/api/v1/sessions", {"token": None}),
        ("POST", "/api/v1/nothing", {}),
        ("POST", "/api/v1/exec", {"length": 1024**3}),
        ("PUT", "/api/v1/sessions/one/files/x", {"length": limit + 1}),
    ]:
        async with api.exchange(method, path, **options) as exchange:
            assert exchange.status >= 400
            assert exchange.headers["connection"] == "close", path
            async with asyncio.timeout(DEADLINE_S):
                await exchange.body()
                assert await exchange.rest() == b""


async def test_other_answers_keep_the_connection(api: Api) -> None:
    """An answer that is sent after the body was read keeps the connection open."""
    for method, path, body in [
        ("GET", "/api/v1/sessions", b""),
        ("POST", "/api/v1/exec", b"no JSON"),
        ("PATCH", "/api/v1/exec", b"{}"),
    ]:
        assert "connection" not in (await api.ask(method, path, body)).headers, path


async def test_websocket_path_without_upgrade(api: Api) -> None:
    """A plain request to the WebSocket's path is answered with JSON."""
    answer = await api.ask("GET", "/api/v1/ws")
    assert answer.status == 400
    assert "WebSocket" in answer.error["message"]


async def test_an_unexpected_error_reveals_only_the_request_id(
    api: Api, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An unexpected error gives 500 with the request id, under which the log has the details."""

    def fail() -> None:
        raise RuntimeError("a secret detail")

    caplog.handler.setFormatter(TextFormatter())
    monkeypatch.setattr(api.world.service.sessions, "list", fail)
    answer = await api.ask("GET", "/api/v1/sessions", headers={"X-Request-ID": "find-me"})
    assert answer.status == 500
    assert answer.error["code"] == "internal_error"
    assert b"secret" not in answer.body
    assert "find-me" in caplog.text
    assert "a secret detail" in caplog.text


async def test_answers_do_not_name_the_server(api: Api) -> None:
    """Answers do not name the server's software, and forbid guessing the content type."""
    for path in ("/health", "/none"):
        answer = await api.ask("GET", path)
        assert "server" not in answer.headers
        assert answer.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("depth", [50, 400, 900, 940, 960, 970, 975, 980, 985, 990])
async def test_deeply_nested_metadata_is_returned(api: Api, depth: int) -> None:
    """Answers with deeply nested metadata do not fail."""
    nested = b'{"metadata":{"a":' + b"[" * depth + b"]" * depth + b"}}"
    opened = await api.ask("POST", "/api/v1/sessions", nested)
    assert opened.status in (201, 400)
    assert (await api.ask("GET", "/api/v1/sessions")).status == 200
    if opened.status == 201:
        # Not by a JSON parser: the test itself may stand too deep for one.
        named = re.search(rb'"session_id":"(\w+)"', opened.body)
        assert named is not None
        path = f"/api/v1/sessions/{named[1].decode()}"
        assert (await api.ask("GET", path)).status == 200
        assert (await api.ask("DELETE", path)).status == 204
