"""Web pages: cross-origin requests, and WebSockets whose credentials are subprotocols."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernelbroker_server.api.credentials import Tickets
from tornado.httpserver import HTTPServer
from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus
from websockets.typing import Origin, Subprotocol

from tests.support.backend import FakeBackend
from tests.support.http import TOKEN, Api, Socket, serving
from tests.support.requires import require
from tests.support.waiting import DEADLINE_S
from tests.support.world import world

PAGE = "https://app.example.org"
V1 = "kernelbroker.v1"


@asynccontextmanager
async def allowing(backend: FakeBackend, *origins: str, **options: Any) -> AsyncIterator[Api]:
    async with (
        world(backend) as w,
        serving(w, allowed_origins=frozenset(origins), **options) as api,
    ):
        yield api


def bearer(token: str) -> str:
    return "kernelbroker.bearer." + base64.urlsafe_b64encode(token.encode()).decode().rstrip("=")


@asynccontextmanager
async def page_socket(api: Api, *subprotocols: str, origin: str = PAGE) -> AsyncIterator[Socket]:
    """A WebSocket as a browser opens it: an Origin, subprotocols, and no header of the page's."""
    url = f"ws://127.0.0.1:{api.port}/api/v1/ws"
    offered = [Subprotocol(each) for each in subprotocols]
    async with connect(url, origin=Origin(origin), subprotocols=offered, proxy=None) as connection:
        yield Socket(connection)


async def refusal(api: Api, *subprotocols: str, origin: str = PAGE) -> int:
    with pytest.raises(InvalidStatus) as refused:
        async with page_socket(api, *subprotocols, origin=origin):
            pass
    return refused.value.response.status_code


async def test_token_as_a_subprotocol(backend: FakeBackend) -> None:
    """A page opens a WebSocket with its token; the answer names only the protocol version."""
    async with allowing(backend, PAGE) as api, page_socket(api, V1, bearer(TOKEN)) as socket:
        assert socket.connection.subprotocol == V1
        await socket.open()
        await socket.send("execute", code="1", execution_id="e")
        assert (await socket.events("e"))[-1].success  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "subprotocols",
    [
        (V1,),
        (V1, bearer("wrong")),
        (V1, "kernelbroker.bearer."),
        (V1, "kernelbroker.bearer.%%%"),
        (V1, "kernelbroker.bearer.__79"),
        (V1, f"kernelbroker.bearer.{TOKEN}"),
        (V1, "kernelbroker.ticket."),
        (V1, "kernelbroker.ticket.none"),
        (V1, "kernelbroker.ticket.none", bearer(TOKEN)),
    ],
)
async def test_invalid_credentials_are_refused(
    backend: FakeBackend, subprotocols: tuple[str, ...]
) -> None:
    """Subprotocols without a valid credential are refused."""
    async with allowing(backend, PAGE) as api:
        assert await refusal(api, *subprotocols) == 401


async def test_refused_websockets_are_no_errors(
    backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A WebSocket that was refused, or whose client left, was never opened: there is nothing to close."""
    head = b"GET /api/v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nContent-Length: 5\r\n"
    async with allowing(backend, PAGE) as api:
        for more in (b"\r\nhe", b"Authorization: Bearer the-token\r\n\r\nhe"):
            _, writer = await asyncio.open_connection("127.0.0.1", api.port)
            writer.write(head + more)
            await writer.drain()
            writer.transport.abort()
        assert await refusal(api, V1) == 401
        assert (await api.ask("GET", "/api/v1/sessions")).status == 200
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def test_credentials_do_not_replace_the_origin(backend: FakeBackend) -> None:
    """A page of another origin is refused even with a valid token or ticket."""
    async with allowing(backend, PAGE) as api:
        assert await refusal(api, V1, bearer(TOKEN), origin="https://evil.example.org") == 403


async def test_subprotocols_are_for_websockets_only(backend: FakeBackend) -> None:
    """A REST call needs the Authorization header."""
    async with allowing(backend, PAGE) as api:
        headers = {"Sec-WebSocket-Protocol": f"{V1}, {bearer(TOKEN)}"}
        answer = await api.ask("GET", "/api/v1/sessions", token=None, headers=headers)
        assert answer.status == 401


async def new_ticket(api: Api) -> str:
    answer = await api.ask("POST", "/api/v1/tickets")
    assert (answer.status, answer.headers["cache-control"]) == (201, "no-store")
    assert set(answer.json) == {"subprotocol", "expires_in"}
    return str(answer.json["subprotocol"])


async def test_a_ticket_opens_one_websocket(
    backend: FakeBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A ticket opens one WebSocket, and no log contains it."""
    caplog.set_level(logging.DEBUG)
    async with allowing(backend, PAGE) as api:
        ticket = await new_ticket(api)
        async with page_socket(api, V1, ticket) as socket:
            assert socket.connection.subprotocol == V1
            await socket.open()
        assert await refusal(api, V1, ticket) == 401
        assert (await api.ask("POST", "/api/v1/tickets", token=None)).status == 401
    broker_log = [each.getMessage() for each in caplog.records if "websockets" not in each.name]
    assert not any(ticket in line or TOKEN in line for line in broker_log)


async def test_an_expired_ticket_is_refused(backend: FakeBackend) -> None:
    """A ticket is valid for a short time."""
    async with allowing(backend, PAGE, tickets=Tickets(lifetime=0)) as api:
        assert await refusal(api, V1, await new_ticket(api)) == 401


async def test_tickets_are_bounded(backend: FakeBackend) -> None:
    """A tenant's oldest tickets become invalid when it has too many."""
    async with allowing(backend, PAGE) as api:
        first = await new_ticket(api)
        tenant = api.world.registry.tenant
        later = [api.service.tickets.issue(tenant) for _ in range(1000)]
        assert await refusal(api, V1, first) == 401
        async with page_socket(api, V1, f"kernelbroker.ticket.{later[0]}"):
            pass


async def test_only_allowed_origins_read_answers(backend: FakeBackend) -> None:
    """Pages of allowed origins can read every answer, including errors. Other pages cannot."""
    async with allowing(backend, PAGE) as api:
        for path, status in (("/api/v1/sessions", 200), ("/api/v1/sessions/none", 404)):
            answer = await api.ask("GET", path, headers={"Origin": PAGE})
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == PAGE
            assert answer.headers["vary"] == "Origin"
            assert "X-Execution-ID" in answer.headers["access-control-expose-headers"]
            assert "access-control-allow-credentials" not in answer.headers
        for origin in ("https://evil.example.org", "null", f"{PAGE}.evil.org"):
            answer = await api.ask("GET", "/api/v1/sessions", headers={"Origin": origin})
            assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_preflight_needs_no_token(backend: FakeBackend) -> None:
    """A preflight request needs no token, and the answer has the methods of the path."""
    asked = {
        "Access-Control-Request-Method": "PUT",
        "Access-Control-Request-Headers": "authorization",
    }
    path = "/api/v1/sessions/one/files/x"
    async with allowing(backend, PAGE) as api:
        answer = await api.ask("OPTIONS", path, token=None, headers={"Origin": PAGE, **asked})
        assert answer.status == 204
        assert answer.headers["access-control-allow-origin"] == PAGE
        assert "PUT" in answer.headers["access-control-allow-methods"].split(", ")
        assert "Authorization" in answer.headers["access-control-allow-headers"].split(", ")
        evil = {"Origin": "https://evil.example.org", **asked}
        answer = await api.ask("OPTIONS", path, token=None, headers=evil)
        assert "access-control-allow-origin" not in answer.headers
        assert (await api.ask("OPTIONS", path, token=None)).status == 401


async def test_no_cross_origin_by_default(api: Api) -> None:
    """Without allowed origins no answer has CORS headers."""
    asked = {"Origin": PAGE, "Access-Control-Request-Method": "GET"}
    assert (await api.ask("OPTIONS", "/api/v1/sessions", headers=asked)).status == 405
    answer = await api.ask("GET", "/api/v1/sessions", headers={"Origin": PAGE})
    assert answer.status == 200
    assert not {"vary", "access-control-allow-origin"} & set(answer.headers)


SCRIPT = """
async function call(method, path, body) {
  const answer = await fetch(BROKER + path, {
    method, body, headers: {Authorization: 'Bearer ' + TOKEN, 'Content-Type': 'application/json'},
  });
  return [answer.status, answer.headers.get('X-Request-ID') !== null, await answer.json()];
}
function run(credential) {
  return new Promise((resolve, reject) => {
    const socket = new WebSocket(BROKER.replace('http', 'ws') + '/api/v1/ws',
                                 ['kernelbroker.v1', credential]);
    const seen = [];
    socket.onopen = () => socket.send(JSON.stringify({op: 'open'}));
    socket.onerror = () => resolve('refused');
    socket.onmessage = (message) => {
      const event = JSON.parse(message.data);
      seen.push(event.type);
      if (event.type === 'opened') {
        socket.send(JSON.stringify({op: 'execute', code: '1', execution_id: 'e'}));
      }
      if (event.type === 'result') {
        socket.close();
        resolve([socket.protocol, event.success]);
      }
    };
  });
}
async function main() {
  const encoded = btoa(TOKEN).replaceAll('+', '-').replaceAll('/', '_').replaceAll('=', '');
  const ticket = (await call('POST', '/api/v1/tickets'))[2].subprotocol;
  return {
    rest: (await call('POST', '/api/v1/assess', '{"code": "1"}')).slice(0, 2),
    missing: (await call('GET', '/api/v1/sessions/none')).slice(0, 2),
    token: await run('kernelbroker.bearer.' + encoded),
    ticket: await run(ticket),
    again: await run(ticket),
  };
}
main().then(found => found, error => String(error))
      .then(found => fetch('/result', {method: 'POST', body: JSON.stringify(found)}));
"""


class Page:
    """A web server with one page, whose script posts its result."""

    def __init__(self) -> None:
        self.script = ""
        self.result: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def served(self) -> AsyncIterator[str]:
        """Serve it at the URL that this yields."""
        page = self

        class Handler(RequestHandler):
            def get(self) -> None:
                self.write(f"<!doctype html><script>{page.script}</script>")

            def post(self) -> None:
                page.result.set_result(json.loads(self.request.body))

        server = HTTPServer(Application([("/", Handler), ("/result", Handler)]))
        sockets = bind_sockets(0, "127.0.0.1")
        server.add_sockets(sockets)
        try:
            yield f"http://127.0.0.1:{sockets[0].getsockname()[1]}"
        finally:
            server.stop()
            await server.close_all_connections()


@asynccontextmanager
async def browser(url: str) -> AsyncIterator[None]:
    require("chromium")
    with tempfile.TemporaryDirectory(prefix="kb-", ignore_cleanup_errors=True) as profile:
        process = await asyncio.create_subprocess_exec(
            "chromium",
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"),
            *("--no-first-run", "--disable-background-networking", "--no-proxy-server"),
            f"--user-data-dir={profile}",
            "--remote-debugging-port=0",  # else it ends once the page is loaded
            url,
            env={**os.environ, "HOME": profile},
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )
        try:
            yield
        finally:
            process.terminate()
            await process.wait()


@pytest.mark.slow
async def test_chromium_calls_the_api(backend: FakeBackend) -> None:
    """A page in Chromium calls the API and runs cells, with a token and with a ticket."""
    page = Page()
    async with page.served() as url, allowing(backend, url) as api:
        broker = f"http://127.0.0.1:{api.port}"
        page.script = f"const BROKER = '{broker}', TOKEN = '{TOKEN}';{SCRIPT}"
        async with browser(url), asyncio.timeout(4 * DEADLINE_S):
            found = await page.result
    assert found == {
        "rest": [200, True],
        "missing": [404, True],
        "token": [V1, True],
        "ticket": [V1, True],
        "again": "refused",
    }
