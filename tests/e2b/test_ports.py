"""Servers in a sandbox, reached by E2B's headers and by the native path."""

from __future__ import annotations

import textwrap

from tests.e2b.support import E2bClients
from tests.e2e.support import whole_system

pytestmark = whole_system

SERVER = """
import asyncio, sys
from tornado.web import Application, RequestHandler, stream_request_body
from tornado.websocket import WebSocketHandler

class Show(RequestHandler):
    def get(self):
        self.set_cookie("theirs", "1")
        self.set_header("Content-Security-Policy", "none")
        self.set_header("X-Own", "1")
        self.write({"uri": self.request.uri, "headers": dict(self.request.headers)})

@stream_request_body
class Count(RequestHandler):
    size = 0
    def data_received(self, chunk):
        self.size += len(chunk)
    def post(self):
        self.write(str(self.size))

class Drip(RequestHandler):
    async def get(self):
        for number in range(3):
            self.write(f"data: {number}\\n\\n")
            await self.flush()
            await asyncio.sleep(0.1)
        self.write(b"x" * 3_000_000)

class Echo(WebSocketHandler):
    def select_subprotocol(self, offered):
        return offered[0] if offered else None
    async def on_message(self, message):
        await self.write_message(message)

async def main():
    Application([("/show.*", Show), ("/count", Count), ("/drip", Drip), ("/ws", Echo)]).listen(
        8000, "127.0.0.1"
    )
    print("ready", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
CLIENT = f"""
import json, os, urllib.error, urllib.request
from e2b_code_interpreter import Sandbox
URL = os.environ["E2B_SANDBOX_URL"]
def serve(sandbox):
    sandbox.files.write("server.py", {SERVER!r})
    server = sandbox.commands.run("python server.py", background=True, timeout=0)
    for out, err, _ in server:
        assert "ready" in (out or ""), err
        return server
def headers_of(sandbox, port):
    return {{"E2b-Sandbox-Id": sandbox.sandbox_id, "E2b-Sandbox-Port": str(port),
            "X-Access-Token": sandbox._envd_access_token}}
def fetch(path, headers, data=None, method=None, url=URL):
    request = urllib.request.Request(url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()
"""


def test_a_server_is_reached_over_http(e2b: E2bClients) -> None:
    """Requests and answers pass in full, without tokens inwards and without cookies or scripts outwards."""
    shown, counted, dripped, native, refused = e2b.python(
        CLIENT
        + textwrap.dedent("""
        with Sandbox.create() as sandbox:
            server = serve(sandbox)
            headers = headers_of(sandbox, 8000)
            own = {"Cookie": "broker=1", "Authorization": "Basic dTpw", "X-Mine": "1"}
            status, answer, body = fetch("/show/a%2Fb?q=%20", headers | own)
            shown = [status, {n.lower(): v for n, v in answer.items()}, json.loads(body)]
            status, _, body = fetch("/count", headers, b"z" * 5_000_000)
            counted = [status, int(body)]
            status, _, body = fetch("/drip", headers)
            dripped = [status, body[:27].decode(), len(body)]
            key = {"Authorization": "Bearer " + os.environ["E2B_API_KEY"]}
            path = f"/api/v1/sessions/{sandbox.sandbox_id}/ports"
            status, answer, body = fetch(path + "/8000/show%20me?x=1", key)
            native = [status, json.loads(body), answer["Content-Security-Policy"][:7]]
            report(shown, counted, dripped, native, [
                fetch("/", headers_of(sandbox, 8001))[0], fetch("/", headers_of(sandbox, 9000))[0],
                fetch("/show", headers | {"X-Access-Token": "x"})[0],
                fetch("/show", headers | {"E2b-Sandbox-Id": "other"})[0],
                fetch(path + "/8000/show", {})[0], fetch(path + "/9000/", key)[2].decode(),
                fetch(path + "/99999/", key)[0], fetch(path + "/8001/", key)[0],
            ])
    """)
    )
    status, answer, seen = shown
    assert (status, seen["uri"]) == (200, "/show/a%2Fb?q=%20")
    names = {name.lower() for name in seen["headers"]}
    assert not names & {"cookie", "x-access-token", "e2b-sandbox-id", "e2b-sandbox-port"}
    assert seen["headers"]["Authorization"] == "Basic dTpw", "it is not for the broker"
    assert (seen["headers"]["X-Mine"], seen["headers"]["Host"]) == ("1", "localhost:8000")
    assert "set-cookie" not in answer and answer["x-own"] == "1"
    assert answer["content-security-policy"].startswith("sandbox")
    assert "allow-same-origin" not in answer["content-security-policy"]
    assert answer["x-content-type-options"] == "nosniff"
    assert counted == [200, 5_000_000]
    assert dripped == [200, "data: 0\n\ndata: 1\n\ndata: 2\n\n", 3_000_027]
    assert native[0] == 200 and native[1]["uri"] == "/show%20me?x=1" and native[2] == "sandbox"
    assert "Authorization" not in native[1]["headers"], "the broker's token"
    closed, forbidden, token, other, none, message, number, native_closed = refused
    assert (closed, forbidden, none, number, native_closed) == (502, 403, 401, 400, 503)
    assert token == 401 and other in (401, 502)
    assert "templates.default.ports = [9000]" in message


def test_a_server_is_reached_over_websockets(e2b: E2bClients) -> None:
    """Messages of any size pass in both directions; the end of one side reaches the other."""
    echoed, chosen, refused = e2b.python(
        CLIENT
        + textwrap.dedent("""
        import asyncio, websockets
        async def talk(url, headers):
            async with websockets.connect(url, additional_headers=headers, subprotocols=["mine"],
                                          max_size=None, proxy=None) as socket:
                got = []
                for message in ("hello", b"x" * 2_000_000):
                    await socket.send(message)
                    got.append(len(await socket.recv()))
                return got, socket.subprotocol
        async def fails(url, headers):
            try:
                await talk(url, headers)
            except websockets.InvalidStatus as error:
                return error.response.status_code
        with Sandbox.create() as sandbox:
            server = serve(sandbox)
            headers = headers_of(sandbox, 8000)
            url = URL.replace("http", "ws", 1)
            key = {"Authorization": "Bearer " + os.environ["E2B_API_KEY"]}
            native = f"{url}/api/v1/sessions/{sandbox.sandbox_id}/ports/8000/ws"
            first, chosen = asyncio.run(talk(url + "/ws", headers))
            second, _ = asyncio.run(talk(native, key))
            report(first + second, chosen, [
                asyncio.run(fails(url + "/nothing", headers)),
                asyncio.run(fails(url + "/ws", headers | {"X-Access-Token": "x"})),
            ])
    """)
    )
    assert echoed == [5, 2_000_000] * 2
    assert (chosen, refused) == ("mine", [404, 401])
