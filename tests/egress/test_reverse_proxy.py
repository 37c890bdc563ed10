"""Servers behind addresses of ours: what is forwarded, with which credentials, and what is refused."""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelbroker_server.audit import Audit
from kernelbroker_server.backends.sockets import listen
from kernelbroker_server.config import ConfigError, Settings
from kernelbroker_server.egress.proxy import Proxy
from kernelbroker_server.egress.reverse_proxy import Route, Upstream, path_pattern
from kernelbroker_server.upstream_factory import upstreams

from tests.support.upstream import Names, Page, serving_http
from tests.support.upstream import Upstream as Server
from tests.support.waiting import broker_tasks

DEADLINE_S = 30.0
HOST = "api.example.org"
SECRET = "sk-of-the-broker"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with tempfile.TemporaryDirectory() as directory, serving_http(Path(directory), HOST) as server:
        yield server


@pytest.fixture
def model(server: Server) -> Upstream:
    server.seen.clear()
    server.headers.clear()
    server.pages.clear()
    routes = [Route(frozenset({"GET", "POST"}), path_pattern("/v1/**"))]
    headers = [(b"x-api-key", SECRET.encode())]
    return Upstream("model", "model", server.address, 80, routes, path="/base/", headers=headers)


@asynccontextmanager
async def proxy(*known: Upstream, usable: tuple[str, ...] = ("model",)) -> AsyncIterator[Any]:
    """A function that sends a request and returns the answer; at the end `records` has the audit log."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        path, log = Path(directory, "out.sock"), Path(directory, "audit.log")
        audit = Audit(log)
        listener = Proxy(audit, resolve=Names({}), upstreams=known).open(
            listen(path), sandbox="s1", template="default", allow=[], upstreams=usable
        )

        async def ask(target: str, *headers: str, method: str = "GET", body: str = "") -> bytes:
            reader, writer = await asyncio.open_unix_connection(str(path))
            try:
                host = "Host: model.internal"
                given = (
                    headers
                    if any(h.lower().startswith("host:") for h in headers)
                    else (host, *headers)
                )
                lines = [f"{method} {target} HTTP/1.1", *given, "", body]
                writer.write("\r\n".join(lines).encode())
                async with asyncio.timeout(DEADLINE_S):
                    return await reader.read()
            finally:
                writer.close()

        ask.path = path  # type: ignore[attr-defined]
        try:
            yield ask
        finally:
            await listener.close()
            audit.close()
            ask.records = await asyncio.to_thread(_text, log)  # type: ignore[attr-defined]
            assert broker_tasks() == set()


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


async def test_the_broker_adds_the_credential(model: Upstream, server: Server) -> None:
    """The server gets the broker's key in place of what the sandbox sent, and the sandbox never sees it."""
    server.pages["/base/v1/messages"] = Page(b"hi", headers={"Set-Cookie": "a=b", "X-Own": "1"})
    async with proxy(model) as ask:
        answer = await ask(
            "http://model.internal/v1/messages?beta=true",
            "X-Api-Key: of-the-sandbox",
            "Authorization: Bearer of-the-sandbox",
            "Cookie: c=d",
            "anthropic-version: 2023-06-01",
            "Content-Length: 2",
            method="POST",
            body="{}",
        )
    record = json.loads(ask.records)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(b"\r\n\r\nhi")
    assert b"set-cookie" not in answer.lower()
    assert b"x-own: 1" in answer.lower()
    host = server.address
    assert server.seen == [("http", "POST", "/base/v1/messages?beta=true", host, b"{}")]
    [headers] = server.headers
    assert headers["x-api-key"] == SECRET
    assert headers["anthropic-version"] == "2023-06-01"
    assert not {"authorization", "cookie"} & set(headers)
    assert SECRET.encode() not in answer
    assert record["upstream"] == "model"
    assert record["host"] == "model.internal"
    assert record["address"] == server.address
    assert record["outcome"] == "allowed"
    assert SECRET not in json.dumps(record)
    assert "messages" not in json.dumps(record)


@pytest.mark.parametrize(
    "header",
    [
        *("X-HTTP-Method-Override: DELETE", "X-HTTP-Method: DELETE", "X-Method-Override: DELETE"),
        *("X-Original-URL: /admin", "X-Rewrite-URL: /admin", "X-Forwarded-Host: other"),
        *("X-Forwarded-Prefix: /admin", "X-Forwarded-For: 127.0.0.1", "Forwarded: host=other"),
        *("X-Real-IP: 127.0.0.1", "X-Amz-Security-Token: a", "Front-End-Https: on", "Via: 1.1 a"),
        *("X_HTTP_Method_Override: DELETE", "Private-Token: a", "X-Unheard-Of: a"),
    ],
)
async def test_headers_that_go_round_the_rules_stay_here(
    model: Upstream, server: Server, header: str
) -> None:
    """With the operator's credential, only header fields of a list are forwarded, and those it names."""
    server.pages["/base/v1/a"] = Page(b"found")
    async with proxy(replace(model, forwards=frozenset({b"x-tenant"}))) as ask:
        answer = await ask(
            "http://model.internal/v1/a", header, "X-Tenant: mine", "Accept: text/html"
        )
    assert answer.endswith(b"found")
    [headers] = server.headers
    assert header.partition(":")[0].lower() not in headers
    assert (headers["x-tenant"], headers["accept"]) == ("mine", "text/html")


async def test_a_credential_that_comes_back_is_masked(model: Upstream, server: Server) -> None:
    """A server that repeats header fields, in its own or in the body, does not show the credential."""
    page = Page(f"you sent {SECRET}.".encode(), headers={"X-Seen": f"key={SECRET}"})
    server.pages["/base/v1/echo"] = page
    async with proxy(replace(model, secrets=[SECRET.encode()])) as ask:
        answer = await ask("http://model.internal/v1/echo", "Accept-Encoding: gzip")
    assert SECRET.encode() not in answer
    stars = "*" * len(SECRET)
    assert answer.endswith(f"you sent {stars}.".encode())
    assert f"key={stars}".encode() in answer
    [headers] = server.headers
    assert headers["accept-encoding"] == "identity"


@pytest.mark.parametrize(
    ("target", "host"),
    [
        ("http://MODEL.internal:80/v1/a", "model.internal:80"),
        ("/v1/a", "model.internal"),
        ("/v1/a", "model.internal:3128"),
        ("/model.internal/v1/a", "127.0.0.1:3128"),
        ("/model.internal/v1/a", "localhost:3128"),
    ],
)
async def test_programs_without_a_proxy_setting(
    model: Upstream, server: Server, target: str, host: str
) -> None:
    """The same server is reached with an absolute URL, and directly at the proxy's port."""
    server.pages["/base/v1/a"] = Page(b"found")
    async with proxy(model) as ask:
        assert (await ask(target, f"Host: {host}")).endswith(b"found")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("DELETE", "/v1/a", 403),
        ("GET", "/v2/a", 403),
        ("GET", "/", 403),
        ("GET", "/v1/../v2/a", 400),
        ("GET", "/v1/%2e%2E/v2", 400),
        ("GET", "/v1/.", 400),
        ("GET", "/v1/..;/v2/a", 400),
        ("GET", "/v1/..;a=b/v2/a", 400),
        ("GET", "/v1/a;/v2", 400),
        ("GET", "/v1/%2e%2e%3b/v2/a", 400),
        ("GET", "/v1/%c0%ae%c0%ae/v2/a", 400),
        ("GET", "/v1/a%0d%0aX-Own:1", 400),
        ("GET", "/v1/a%09", 400),
        ("GET", "/v1/a%2fb", 400),
        ("GET", "/v1/a%5C..%5cb", 400),
        ("GET", "/v1/%252e%252e/x", 400),
        ("GET", "//v1/a", 400),
        ("GET", "/v1//a", 400),
    ],
)
async def test_other_paths_are_refused(
    model: Upstream, server: Server, method: str, path: str, status: int
) -> None:
    """What is not listed, or can be read in two ways, does not reach the server."""
    async with proxy(model) as ask:
        answer = await ask(f"http://model.internal{path}", method=method)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert server.seen == []


async def test_a_sandbox_uses_only_its_own(model: Upstream, server: Server) -> None:
    """The upstream of another template, another name, and a tunnel are refused."""
    async with proxy(model, replace(model, id="o", name="other"), usable=("o",)) as ask:
        refused = await ask("http://model.internal/v1/a")
        assert b"403" in refused.split(b"\r\n")[0]
        assert b"ask your operator" in refused
        other = await ask("http://more.internal/v1/a", "Host: more.internal")
        assert other.startswith(b"HTTP/1.1 403 ")
        tunnel = await ask("other.internal:443", "Host: other.internal:443", method="CONNECT")
        assert tunnel.startswith(b"HTTP/1.1 403 ")
    assert server.seen == []


async def test_tls_to_the_server(model: Upstream, server: Server) -> None:
    """The server's certificate is checked for its name."""
    server.pages["/base/v1/a"] = Page(b"sealed")
    context = ssl.create_default_context(cafile=str(server.ca))
    context.check_hostname = False  # the certificate has a name; the test's server only an address
    async with proxy(replace(model, port=443, tls=context)) as ask:
        assert (await ask("http://model.internal/v1/a")).endswith(b"sealed")
        assert server.seen[0][0] == "https"
    strict = ssl.create_default_context(cafile=str(server.ca))
    async with proxy(replace(model, port=443, tls=strict)) as ask:
        answer = await ask("http://model.internal/v1/a")
        assert answer.startswith(b"HTTP/1.1 502 ")
        assert b"no valid certificate" in answer
    assert len(server.seen) == 1


async def test_a_server_that_is_down(model: Upstream) -> None:
    """The answer is 502, and names the address that the sandbox knows."""
    async with proxy(replace(model, port=1)) as ask:
        answer = await ask("http://model.internal/v1/a")
    assert answer.startswith(b"HTTP/1.1 502 ")
    assert b"model.internal" in answer


async def test_a_slow_server(model: Upstream, server: Server) -> None:
    """It may be silent for as long as the upstream's own timeout."""
    gate = threading.Event()
    server.pages["/base/v1/a"] = Page(b"late", gate=gate)
    async with proxy(replace(model, idle_timeout=0.2)) as ask:
        assert (await ask("http://model.internal/v1/a")).startswith(b"HTTP/1.1 504 ")
    gate.set()


async def test_streams_arrive_at_once(model: Upstream) -> None:
    """A part of an answer is passed on before the server has sent the rest."""
    more = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await more.wait()
        writer.write(b"4\r\nlast\r\n0\r\n\r\n")
        await writer.drain()
        writer.close()

    slow = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = slow.sockets[0].getsockname()[1]
    async with slow, proxy(replace(model, host="127.0.0.1", port=port)) as ask:
        reader, writer = await asyncio.open_unix_connection(str(ask.path))
        writer.write(b"GET /v1/a HTTP/1.1\r\nHost: model.internal\r\n\r\n")
        async with asyncio.timeout(DEADLINE_S):
            await reader.readuntil(b"first")
            more.set()
            assert b"last" in await reader.read()
        writer.close()


def settings(**section: Any) -> Settings:
    return Settings(
        upstreams={"model": {"url": "https://api.example.org/v0", **section}},
        templates={"coder": {"upstreams": ["model"]}},
    )


def test_settings_become_an_upstream(tmp_path: Path) -> None:
    """The token of a file goes into the header, with a scheme only for Authorization."""
    (tmp_path / "key").write_text("abc\n")
    [made] = upstreams(settings(token_file=tmp_path / "key", header="X-Goog-Api-Key"))
    assert made.headers == [(b"x-goog-api-key", b"abc")]
    assert (made.address, made.host, made.port, made.path) == (
        "model.internal", "api.example.org", 443, "/v0/",
    )  # fmt: skip
    assert made.tls is not None
    assert "abc" not in repr(made)
    [made] = upstreams(settings(token="abc"))
    assert made.headers == [(b"authorization", b"Bearer abc")]
    [made] = upstreams(settings(token="abc", scheme="token"))
    assert made.headers == [(b"authorization", b"token abc")]


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"token": "a\r\nb: c"}, "characters"),
        ({"token_file": "/nonexistent/key"}, "cannot be read"),
        ({"ca_file": "/nonexistent/ca"}, "ca_file"),
    ],
)
def test_credentials_that_cannot_be_used(section: dict[str, Any], told: str) -> None:
    """The error names the key."""
    with pytest.raises(ConfigError, match=told):
        upstreams(settings(**section))


@pytest.mark.parametrize(
    "section",
    [
        {"url": "ftp://example.org"},
        {"url": "https://user:secret@example.org"},
        {"url": "https://example.org?a=b"},
        {"token": "a", "token_file": "/b"},
        {"header": "a b"},
        {"methods": ["get"]},
        {"paths": ["v1"]},
    ],
)
def test_sections_that_are_refused(section: dict[str, Any]) -> None:
    """A section that cannot be meant is refused when the settings are read."""
    with pytest.raises(ValueError, match=r"upstreams\.model"):
        settings(**section)


def test_templates_name_existing_upstreams() -> None:
    """An unknown name is refused with its key."""
    with pytest.raises(
        ValueError, match=r"templates.coder.upstreams: there is no upstream 'other'"
    ):
        Settings(templates={"coder": {"upstreams": ["other"]}})
