"""Webhooks get the results of executions: signed, at allowed hosts only, also after a restart."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import ssl
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from kernelbroker.protocol.errors import BadRequest, TooManyRequests
from kernelbroker.protocol.messages import ExecutionRequest
from kernelbroker_server import factories
from kernelbroker_server.config import ConfigError, Settings
from kernelbroker_server.egress.host_names import AllowList
from kernelbroker_server.service.target import Target
from kernelbroker_server.service.webhook_message import MAX_TEXT, secret_key, signed_headers
from kernelbroker_server.service.webhook_sender import WebhookPolicy, WebhookSender
from kernelbroker_server.service.webhooks import Webhooks
from kernelbroker_server.sessions.memory_store import MemoryStore
from kernelbroker_server.sessions.store import EventStore
from tornado.httpserver import HTTPServer
from tornado.httputil import HTTPServerRequest
from tornado.netutil import bind_sockets

from tests.service.test_after_a_crash import after_a_kill, started
from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.http import serving
from tests.support.upstream import Names, make_certificate
from tests.support.waiting import DEADLINE_S
from tests.support.world import Breakpoint, result_of, world

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
LOOPBACK = (ip_network("127.0.0.0/8"),)


class Receiver:
    """A webhook.

    Attributes:
        answers: statuses, or statuses with headers, of the next answers; 204 after them.
        got: the messages: their headers and bodies.
    """

    def __init__(self) -> None:
        self.answers: list[int] = []
        self.got: list[tuple[dict[str, str], bytes]] = []
        self.paths: list[str] = []
        self.port = 0
        self._changed = asyncio.Event()

    @property
    def url(self) -> str:
        return f"http://hook.test:{self.port}/done?to=me"

    async def received(self, count: int) -> list[Any]:
        """Wait for so many messages. Returns their JSON; their signatures must be valid."""
        async with asyncio.timeout(DEADLINE_S):
            while len(self.got) < count:
                self._changed.clear()
                await self._changed.wait()
        return [json.loads(verified(headers, body)) for headers, body in self.got]

    def __call__(self, request: HTTPServerRequest) -> None:
        assert request.method == "POST"
        self.paths.append(request.uri or "")
        self.got.append(({k.lower(): v for k, v in request.headers.items()}, request.body))
        status = self.answers.pop(0) if self.answers else 204
        connection: Any = request.connection
        location = f"Location: http://hook.test:{self.port}/other\r\n" if status == 302 else ""
        head = f"HTTP/1.1 {status} x\r\n{location}Content-Length: 0\r\n\r\n"
        connection.stream.write(head.encode())
        connection.finish = lambda: None
        connection.stream.close()
        self._changed.set()


def verified(headers: dict[str, str], body: bytes) -> bytes:
    """Verify a message as a receiver does, by the specification alone."""
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    key = base64.b64decode(SECRET.removeprefix("whsec_"))
    expected = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{expected}"
    assert headers["content-type"] == "application/json"
    return body


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver = Receiver()
    server = HTTPServer(receiver)
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    receiver.port = sockets[0].getsockname()[1]
    yield receiver
    server.stop()
    await server.close_all_connections()


class Pauses:
    """The pauses between attempts, which take no time."""

    def __init__(self) -> None:
        self.taken: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.taken.append(seconds)


def sender(
    hosts: Sequence[str] = ("hook.test", "*.hooks.test"),
    private: Any = LOOPBACK,
    resolve: Names | None = None,
    **options: Any,
) -> WebhookSender:
    policy = WebhookPolicy(AllowList(hosts), secret_key(SECRET), private, allow_http=True)
    return WebhookSender(policy, resolve or Names({"hook.test": [["127.0.0.1"]]}), **options)


@asynccontextmanager
async def telling(store: EventStore, **options: Any) -> AsyncIterator[Webhooks]:
    options = {"sender": sender(), "sleep": Pauses(), **options}
    webhooks = Webhooks(store, **options)
    try:
        yield webhooks
    finally:
        await webhooks.stop()


def request(url: str, code: str = "talk", **fields: Any) -> ExecutionRequest:
    return ExecutionRequest(code=code, callback_url=url, **fields)


def test_the_signature_is_that_of_standard_webhooks() -> None:
    """A message of the reference implementations has the signature that they give it."""
    headers = signed_headers(
        secret_key(SECRET), "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
    )
    assert headers == {
        "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
        "webhook-timestamp": "1614265330",
        "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    }


async def test_a_result_is_delivered(backend: FakeBackend, receiver: Receiver) -> None:
    """The message has ids, outcome and output, bounded and without secrets."""

    async def talk(cell: Cell) -> None:
        cell.stdout("the key is hunter2hunter2\n" + "x" * 3 * MAX_TEXT)
        cell.display({"text/plain": "a table"})

    backend.scripts.update(talk=talk)
    store = MemoryStore()
    async with telling(store) as webhooks, world(backend, store=store, webhooks=webhooks) as w:
        submitted = await w.service.executions.accept(
            request(receiver.url, secrets={"KEY": "hunter2hunter2"}), Target("s")
        )
        [message] = await receiver.received(1)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(webhooks._tasks)
        assert store.entries("webhook") == []
    data = message["data"]
    assert message["type"] == "execution.ended"
    assert message["timestamp"].endswith("Z")
    assert (data["execution_id"], data["session_id"]) == (submitted.log.id, "s")
    assert (data["success"], data["error"], data["complete"]) == (True, None, False)
    assert data["text"].startswith("the key is ***\n")
    assert data["text"].endswith("xxx" + "a table\n")
    assert len(data["text"]) == MAX_TEXT
    assert receiver.paths == ["/done?to=me"]
    assert b"hunter2" not in receiver.got[0][1]


async def test_it_is_sent_again_with_the_same_id(backend: FakeBackend, receiver: Receiver) -> None:
    """After errors and redirects, which are not followed, the message comes again with growing pauses."""
    receiver.answers = [500, 302, 429]
    store, pauses = MemoryStore(), Pauses()
    async with (
        telling(store, sleep=pauses) as webhooks,
        world(backend, store=store, webhooks=webhooks) as w,
    ):
        await w.service.executions.accept(request(receiver.url, "fail"), Target())
        messages = await receiver.received(4)
    assert len({headers["webhook-id"] for headers, _ in receiver.got}) == 1
    assert messages[1:] == messages[:-1]
    assert set(receiver.paths) == {"/done?to=me"}
    assert [round(pause, -1) // 10 for pause in pauses.taken[1:]] == pytest.approx([3, 12], abs=3)
    assert pauses.taken == sorted(pauses.taken)


@pytest.mark.parametrize("answer", [500, 410])
async def test_it_is_given_up(
    backend: FakeBackend, receiver: Receiver, answer: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A message is given up when it is too old, or at once after a 410. The log has no path."""
    receiver.answers = [answer] * 100
    now = [time.time()]
    store = MemoryStore()

    async def sleep(seconds: float) -> None:
        now[0] += seconds

    options = {"sleep": sleep, "clock": lambda: now[0], "max_age": 1000.0}
    async with (
        telling(store, **options) as webhooks,
        world(backend, store=store, webhooks=webhooks) as w,
    ):
        await w.service.executions.accept(request(receiver.url), Target())
        await receiver.received(1)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(webhooks._tasks)
    assert store.entries("webhook") == []
    assert len(receiver.got) == (1 if answer == 410 else 5)
    [record] = [r for r in caplog.records if "given up" in r.message]
    assert f"hook.test answered {answer}" in record.message
    assert "/done" not in caplog.text


async def test_it_survives_a_kill(backend: FakeBackend, receiver: Receiver, tmp_path: Path) -> None:
    """Messages that wait, of executions that had ended or still ran, are delivered by the next broker."""
    point = Breakpoint()
    backend.scripts.update(wait=point)
    first = await started(tmp_path / "first")
    held = asyncio.Event()

    async def sleep(seconds: float) -> None:
        held.set()
        await asyncio.Event().wait()

    receiver.answers = [503]
    async with (
        telling(first, sleep=sleep) as webhooks,
        world(backend, store=first, webhooks=webhooks) as w,
    ):
        executions = w.service.executions
        done = await executions.accept(request(receiver.url), Target())
        await asyncio.wait_for(held.wait(), DEADLINE_S)
        lost = await executions.accept(request(receiver.url, "wait"), Target())
        await point.reached()
        webhooks.expect("default", "s", "never accepted", receiver.url)
        second = await after_a_kill(tmp_path / "first", "second")
        await webhooks.stop()
        point.go_on.set()
        await result_of(lost.log)
    await first.stop()
    async with telling(second) as webhooks:
        webhooks.resume()
        messages = await receiver.received(3)
        async with asyncio.timeout(DEADLINE_S):
            await asyncio.wait(webhooks._tasks)
        assert second.entries("webhook") == []
    await second.stop()
    assert messages[0]["data"]["execution_id"] == done.log.id
    ended = {m["data"]["execution_id"]: m["data"] for m in messages[1:]}
    assert ended.keys() == {done.log.id, lost.log.id}
    assert ended[done.log.id] == messages[0]["data"]
    assert ended[lost.log.id]["cause"] == "sandbox_lost"
    ids = [headers["webhook-id"] for headers, _ in receiver.got]
    assert len(set(ids)) == 2


async def test_certificates_are_verified(receiver: Receiver, tmp_path: Path) -> None:
    """Over HTTPS the certificate must be valid for the name of the URL."""
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    await asyncio.to_thread(make_certificate, certificate, key, ["hook.test"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = HTTPServer(receiver, ssl_options=context)
    sockets = bind_sockets(0, "127.0.0.1")
    server.add_sockets(sockets)
    port = sockets[0].getsockname()[1]
    names = Names({"hook.test": [["127.0.0.1"]], "a.hooks.test": [["127.0.0.1"]]})
    trusting = sender(resolve=names, ca_certs=str(certificate))
    try:
        url = f"https://hook.test:{port}/"
        assert (await trusting.send(url, "msg_1", b"{}"))[0].value == "delivered"
        assert len(receiver.got) == 1
        for each, host in ((trusting, "a.hooks.test"), (sender(resolve=names), "hook.test")):
            outcome, reason = await each.send(f"https://{host}:{port}/", "msg_1", b"{}")
            assert (outcome.value, reason) == ("failed", f"{host}: SSLCertVerificationError")
        assert len(receiver.got) == 1
    finally:
        server.stop()
        await server.close_all_connections()


async def test_a_name_is_resolved_once(backend: FakeBackend, receiver: Receiver) -> None:
    """The connection goes to the address that was checked, whatever the name resolves to afterwards."""
    names = Names({"hook.test": [["127.0.0.1"], ["127.0.0.2"]]})
    outcome, _ = await sender(resolve=names).send(receiver.url, "msg_1", b"{}")
    assert outcome.value == "delivered"
    assert names.asked == ["hook.test"]


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "10.1.2.3", "169.254.169.254", "::1", "fe80::1%1"]
)
async def test_private_addresses_get_nothing(receiver: Receiver, address: str) -> None:
    """A host with a private address, also one among several, gets no connection."""
    names = Names({"hook.test": [["93.184.215.14", address]]})
    outcome, reason = await sender(private=(), resolve=names).send(receiver.url, "msg_1", b"{}")
    assert outcome.value == "failed"
    assert "not public" in reason
    assert receiver.got == []


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("https://evil.test/", "evil.test is not allowed"),
        ("https://hook.test.evil.test/", "not allowed"),
        ("https://hooks.test/", "hooks.test is not allowed"),
        ("ftp://hook.test/", "must begin with https"),
        ("https://me:pw@hook.test/", "no password"),
        ("https://hook.test/#here", "no fragment"),
        ("https://127.0.0.1/", "IP addresses are not allowed"),
        ("https://[::1]/", "IP addresses are not allowed"),
        ("https://0x7f.1/", "IP addresses are not allowed"),
        ("https://hook.test:99999/", "not a URL"),
        ("https://hook.test/\r\nHost: x", "printable ASCII"),
        ("https:///nohost", "not a URL"),
    ],
)
def test_urls_that_are_refused(url: str, message: str) -> None:
    """A URL that may not be called is refused, with what to change."""
    with pytest.raises(BadRequest, match=message):
        sender().check(url)
    sender().check("https://a.hooks.test/x")


async def test_requests_are_refused_before_they_run(backend: FakeBackend) -> None:
    """Without allowed hosts, and with too many messages that wait, an execution is refused and not run."""
    async with world(backend) as w, serving(w) as api:
        body = {"code": "talk", "callback_url": "https://hook.test/"}
        for path in ("/api/v1/exec", "/api/v1/executions"):
            answer = await api.ask("POST", path, body)
            assert answer.status == 400
            assert "webhooks.allowed_hosts" in answer.error["message"]
        assert backend.cells == []
    store = MemoryStore()
    async with telling(store) as webhooks, world(backend, store=store, webhooks=webhooks) as w:
        webhooks._pending["default"] = 1_000
        with pytest.raises(TooManyRequests, match="wait for their webhooks"):
            await w.service.executions.accept(request("https://hook.test/"), Target())
        del webhooks._pending["default"]


def test_settings() -> None:
    """Webhooks are off by default; bad settings are refused by their names, and never show the secret."""
    store = MemoryStore()
    off = factories.webhooks(Settings(), store)
    with pytest.raises(BadRequest, match="calls no webhooks"):
        off.check("default", "https://hook.test/")

    def made(**webhooks: Any) -> Webhooks:
        return factories.webhooks(Settings(webhooks=webhooks), store)

    made(allowed_hosts=["hook.test"], secret=SECRET).check("default", "https://hook.test/")
    with pytest.raises(BadRequest, match="https"):
        made(allowed_hosts=["hook.test"], secret=SECRET).check("default", "http://hook.test/")
    with pytest.raises(ConfigError, match=r"webhooks\.secret must be set"):
        made(allowed_hosts=["hook.test"])
    with pytest.raises(ConfigError, match=r"webhooks\.allowed_hosts: 'https://x' is not a name"):
        made(allowed_hosts=["https://x"], secret=SECRET)
    for secret in ("hunter2", "whsec_c2hvcnQ=", SECRET.removeprefix("whsec_")):
        with pytest.raises(ConfigError, match="must be whsec_") as refused:
            made(allowed_hosts=["hook.test"], secret=secret)
        assert secret not in str(refused.value)
