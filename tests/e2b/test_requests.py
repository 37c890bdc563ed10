"""E2B's surface over HTTP, with scripted sandboxes: who may do what, errors, routes, lists."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from kernelbroker_server.e2b.access import AccessTokens
from kernelbroker_server.e2b.surface import E2bSurface
from kernelbroker_server.e2b.surface_options import SurfaceOptions
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import Tenants

from tests.api.test_tenants import Names
from tests.support.backend import FakeBackend, spotless_backend
from tests.support.gateway import Cell
from tests.support.http import Answer, Api, serving
from tests.support.waiting import until
from tests.support.world import world

ACCESS = AccessTokens(b"k" * 32)
TEMPLATES = {"base": "default", "code-interpreter-v1": "default"}
NEW = {"templateID": "base", "metadata": {"of": "me"}}


@pytest.fixture
async def backend() -> AsyncIterator[FakeBackend]:
    async with spotless_backend() as backend:
        yield backend


@asynccontextmanager
async def e2b_api(backend: FakeBackend) -> AsyncIterator[Api]:
    """The application with E2B's surface; a tenant's token is its name."""
    surface = E2bSurface(SurfaceOptions(ACCESS, TEMPLATES, ("sandboxes.test",)))
    async with (
        world(backend, pool=PoolLimits(1, 20)) as w,
        serving(w, keyring=Names({}), surfaces=surface.routes) as api,
    ):
        yield api


async def ask(
    api: Api, method: str, path: str, body: Any = b"", key: str | None = "acme", **headers: str
) -> Answer:
    """A call of the control plane, with its API key as E2B's clients send it."""
    sent = {"X-API-Key": key} if key else {}
    return await api.ask(method, f"/e2b{path}", body, token=None, headers=sent | headers)


async def new(api: Api, key: str = "acme", **fields: Any) -> Any:
    """Create a sandbox."""
    answer = await ask(api, "POST", "/v2/sandboxes", NEW | fields, key)
    assert answer.status == 201, answer.body
    return answer.json


async def at(
    api: Api, created: Any, method: str, path: str, body: Any = b"", port: int = 49999, **more: str
) -> Answer:
    """A request to a port of a sandbox, with its access token."""
    headers = {
        "E2b-Sandbox-Id": created["sandboxID"],
        "E2b-Sandbox-Port": str(port),
        "X-Access-Token": created["envdAccessToken"],
    }
    return await api.ask(method, path, body, token=None, headers=headers | more)


def error_of(answer: Answer) -> tuple[int, str]:
    """The status and the message of an error, which must have E2B's form."""
    body = answer.json
    assert body["code"] == answer.status >= 400
    assert body["message"]
    return answer.status, body["message"]


CALLS: list[tuple[str, str, Any]] = [
    ("GET", "", None),
    ("DELETE", "", None),
    ("POST", "/connect", {}),
    ("POST", "/resume", {}),
    ("POST", "/pause", {}),
    ("POST", "/timeout", {"timeout": 5}),
    ("POST", "/refreshes", {"duration": 5}),
    ("POST", "/fork", {}),
    ("POST", "/snapshots", {}),
    ("PUT", "/network", {}),
    ("GET", "/metrics", None),
]


@pytest.mark.parametrize(("method", "path", "body"), CALLS)
async def test_another_tenants_sandbox_is_not_found(
    backend: FakeBackend, method: str, path: str, body: Any
) -> None:
    """The sandbox of another tenant is not found, as one that never was."""
    async with e2b_api(backend) as api:
        sandbox_id = (await new(api))["sandboxID"]
        found = await ask(api, method, f"/sandboxes/{sandbox_id}{path}", body or b"", "umbrella")
        never = await ask(api, method, f"/sandboxes/never{path}", body or b"", "umbrella")
        assert error_of(found)[0] == error_of(never)[0] == 404
        assert found.json["message"].replace(sandbox_id, "never") == never.json["message"]
        assert (await ask(api, "GET", f"/sandboxes/{sandbox_id}")).json["state"] == "running"
        assert (await ask(api, "GET", "/v2/sandboxes", key="umbrella")).json == []


async def test_a_call_without_a_key_is_refused(backend: FakeBackend) -> None:
    """Without an API key nothing is answered, not even whether a path exists."""
    async with e2b_api(backend) as api:
        for path in ("/sandboxes", "/v2/sandboxes", "/sandboxes/x", "/nothing", "/templates"):
            status, message = error_of(await ask(api, "GET", path, key=None))
            assert (status, "E2B_API_KEY" in message) == (401, True)


@pytest.mark.parametrize(
    ("token", "key"),
    [
        ("any token", f"e2b_{b'any token'.hex()}"),
        ("e2b_0a", "e2b_0a"),
        (f"kb_{'1' * 12}_{'2' * 64}", f"e2b_{'1' * 12}{'2' * 64}"),
        ("any", None),
        ("any", "e2b_"),
        ("any", "e2b_xy"),
        ("any", "e2b_ff"),
    ],
)
async def test_keys_for_clients_that_insist_on_a_form(
    backend: FakeBackend, token: str, key: str | None
) -> None:
    """A key of the form that E2B's older clients insist on stands for a token; others are refused."""
    surface = E2bSurface(SurfaceOptions(ACCESS, TEMPLATES))
    async with (
        world(backend) as w,
        serving(w, keyring=Keyring(Tenants({}), token), surfaces=surface.routes) as api,
    ):
        valid = token != "any"
        assert (await ask(api, "GET", "/sandboxes", key=key)).status == (200 if valid else 401)
        assert (await ask(api, "GET", "/sandboxes", key=token)).status == 200


async def test_an_access_token_opens_one_sandbox(backend: FakeBackend) -> None:
    """The access token of a sandbox opens it; that of another sandbox or tenant does not."""
    async with e2b_api(backend) as api:
        mine, other = await new(api), await new(api)
        theirs = await new(api, "umbrella")
        for port in (49999, 49983):
            health = await at(api, mine, "GET", "/health", port=port)
            assert health.status in (200, 204) or port == 49983
            assert health.status != 401
            for bad in (other, theirs, {"envdAccessToken": "kbs_acme_" + "0" * 64}):
                stolen = {**mine, "envdAccessToken": bad["envdAccessToken"]}
                assert error_of(await at(api, stolen, "GET", "/health", port=port))[0] == 401
            nothing = {**mine, "envdAccessToken": ""}
            assert error_of(await at(api, nothing, "GET", "/health", port=port))[0] == 401
        for name in ("E2B-Traffic-Access-Token", "X-API-Key"):
            value = mine["trafficAccessToken"] if name.startswith("E2B") else "acme"
            answer = await at(
                api, {**mine, "envdAccessToken": ""}, "GET", "/health", **{name: value}
            )
            assert answer.status == 200


async def test_a_sandbox_that_has_ended_answers_502(backend: FakeBackend) -> None:
    """A sandbox that has ended, or never was, is a bad gateway, which E2B's clients understand."""
    async with e2b_api(backend) as api:
        created = await new(api)
        assert (await ask(api, "DELETE", f"/sandboxes/{created['sandboxID']}")).status == 204
        for path in ("/health", "/execute", "/contexts", "/nothing"):
            method = "POST" if path == "/execute" else "GET"
            answer = await at(api, created, method, path, {"code": "1"})
            assert error_of(answer)[0] == 502
        token = ACCESS.of("acme", "never")
        never = {"sandboxID": "never", "envdAccessToken": token}
        assert error_of(await at(api, never, "GET", "/health"))[0] == 502
        assert error_of(await ask(api, "DELETE", f"/sandboxes/{created['sandboxID']}"))[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "says"),
    [
        ("/v2/sandboxes", b"{", "invalid"),
        ("/v2/sandboxes", b"[]", "invalid"),
        ("/v2/sandboxes", {}, "templateID"),
        ("/v2/sandboxes", NEW | {"timeout": -1}, "timeout"),
        ("/v2/sandboxes", NEW | {"timeout": 0}, "at least 1 s"),
        ("/v2/sandboxes", NEW | {"timeout": 10**6}, "sessions.max_lifetime"),
        ("/v2/sandboxes", NEW | {"timeout": "soon"}, "timeout"),
        ("/v2/sandboxes", NEW | {"metadata": {"a": 1}}, "metadata"),
        ("/v2/sandboxes", NEW | {"envVars": {"a": 1}}, "envVars"),
        ("/v2/sandboxes", NEW | {"mcp": {"github": {}}}, "mcp"),
        ("/v2/sandboxes", NEW | {"volumeMounts": [{}]}, "volume_mounts"),
        ("/v2/sandboxes", NEW | {"metadata": {"a": "b" * 20_000}}, "metadata"),
        ("/sandboxes/ID/timeout", {"timeout": 10**6}, "sessions.max_lifetime"),
        ("/sandboxes/ID/fork", {"count": 21}, "count"),
        ("/sandboxes/ID/snapshots", {"name": "../x"}, "name"),
        ("/sandboxes/ID/snapshots", {"name": "base"}, "template"),
    ],
)
async def test_garbage_is_refused_with_a_sentence(
    backend: FakeBackend, path: str, body: Any, says: str
) -> None:
    """A body that makes no sense is a bad request, and the message names what is wrong."""
    async with e2b_api(backend) as api:
        sandbox_id = (await new(api))["sandboxID"]
        status, message = error_of(await ask(api, "POST", path.replace("ID", sandbox_id), body))
        assert status == 400
        assert says in message


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=x", "limit=101", "nextToken=%21", "state=dead", "startedAfter=soon"],
)
async def test_garbage_in_a_query_is_refused(backend: FakeBackend, query: str) -> None:
    """A list is not answered if its filter makes no sense."""
    async with e2b_api(backend) as api:
        status, message = error_of(await ask(api, "GET", f"/v2/sandboxes?{query}"))
        assert status == 400
        assert query.partition("=")[0] in message


async def test_an_unknown_template_is_not_found(backend: FakeBackend) -> None:
    """A template that is not there is not found, and the message names those that are."""
    async with e2b_api(backend) as api:
        answer = await ask(api, "POST", "/v2/sandboxes", NEW | {"templateID": "desktop"})
        status, message = error_of(answer)
        assert status == 404
        assert "base, code-interpreter-v1, default" in message


@pytest.mark.parametrize(
    "body",
    [b"{", b"1", {}, {"code": 1}, {"code": "1", "language": "cobol"}, {"code": "1" * 200_000}],
)
async def test_garbage_to_run_is_refused(backend: FakeBackend, body: Any) -> None:
    """What is no cell is a bad request."""
    async with e2b_api(backend) as api:
        assert error_of(await at(api, await new(api), "POST", "/execute", body))[0] == 400


async def test_lists_come_in_pages(backend: FakeBackend) -> None:
    """A list comes in pages, newest first or oldest first, and each sandbox is on one of them."""
    async with e2b_api(backend) as api:
        made = [(await new(api))["sandboxID"] for _ in range(5)]
        for order, expected in (("asc", made), ("desc", made[::-1])):
            found, query = [], ""
            while True:
                path = f"/v2/sandboxes?limit=2&order={order}{query}"
                answer = await ask(api, "GET", path)
                page = [each["sandboxID"] for each in answer.json]
                found.append(page)
                if "x-next-token" not in answer.headers:
                    break
                query = f"&nextToken={answer.headers['x-next-token']}"
            assert [len(page) for page in found] == [2, 2, 1]
            assert [each for page in found for each in page] == expected


async def test_lists_are_filtered(backend: FakeBackend) -> None:
    """A list is filtered by metadata, state, template and time."""
    async with e2b_api(backend) as api:
        await new(api, metadata={"a": "1", "b": "x y&z"})
        two = (await new(api, metadata={"a": "1"}))["sandboxID"]

        async def ids(query: str) -> list[str]:
            answer = await ask(api, "GET", f"/v2/sandboxes?{query}")
            return [each["sandboxID"] for each in answer.json]

        assert len(await ids("metadata=a%3D1")) == 2
        both = "metadata=a%3D1%26b%3Dx%252520y%252526z"  # each is quoted, and then the whole
        assert len(await ids(both)) == 1
        assert two not in await ids(both)
        assert await ids("metadata=a%3D2") == await ids("state=paused") == []
        assert len(await ids("template=base")) == len(await ids("template=default")) == 2
        assert await ids("template=other") == []
        assert await ids("startedAfter=2100-01-01T00:00:00Z") == []


async def test_the_host_name_tells_the_sandbox(backend: FakeBackend) -> None:
    """Below a configured domain the host name has the port and the sandbox; other names mean nothing."""
    async with e2b_api(backend) as api:
        created = await new(api)
        token = {"X-Access-Token": created["envdAccessToken"]}

        async def get(host: str) -> Answer:
            reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
            lines = ["GET /health HTTP/1.1", f"Host: {host}", "Connection: close"]
            lines += [f"{name}: {value}" for name, value in token.items()]
            writer.write("\r\n".join([*lines, "", ""]).encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            return Answer(int(head.split()[1]), {"content-type": "application/json"}, body)

        name = f"49999-{created['sandboxID']}"
        assert (await get(f"{name}.sandboxes.test")).json == "OK"
        assert (await get(f"{name}.sandboxes.test:{api.port}")).json == "OK"
        assert (await get(f"{name}.elsewhere.test")).json["status"]  # the broker's own /health
        assert (await get("49999-never.sandboxes.test")).status == 401


async def test_a_lost_client_interrupts_its_cell(backend: FakeBackend) -> None:
    """When the client goes away, its cell is interrupted, as at E2B."""
    seen: list[Cell] = []

    async def forever(cell: Cell) -> None:
        seen.append(cell)
        cell.stdout("begun")
        await cell.until_interrupted()

    backend.scripts["forever"] = forever
    async with e2b_api(backend) as api:
        created = await new(api)
        headers = {"E2b-Sandbox-Id": created["sandboxID"], "E2b-Sandbox-Port": "49999"}
        headers["X-Access-Token"] = created["envdAccessToken"]
        body = {"code": "forever"}
        async with api.exchange("POST", "/execute", body, headers, None) as exchange:
            while b"begun" not in await exchange.chunk():
                pass
            exchange.hang_up()
        await until(lambda: seen[0].interrupted.is_set())


async def test_a_silent_cell_keeps_the_connection_alive(
    backend: FakeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a cell prints nothing, lines come that clients ignore."""
    monkeypatch.setattr("kernelbroker_server.e2b.execute.KEEPALIVE_S", 0.01)
    ends = asyncio.Event()

    async def silent(cell: Cell) -> None:
        await ends.wait()

    backend.scripts["silent"] = silent
    async with e2b_api(backend) as api:
        created = await new(api)
        headers = {"E2b-Sandbox-Id": created["sandboxID"], "E2b-Sandbox-Port": "49999"}
        headers["X-Access-Token"] = created["envdAccessToken"]
        async with api.exchange("POST", "/execute", {"code": "silent"}, headers, None) as exchange:
            while json.loads(await exchange.chunk())["type"] != "keepalive":
                pass
            ends.set()
            lines = [json.loads(each) for each in (await exchange.body()).splitlines()]
        assert lines[-1] == {"type": "end_of_execution"}


async def test_all_forms_of_a_result_arrive(backend: FakeBackend) -> None:
    """A result has each MIME type under E2B's name, other types are extra, and a text has no quotes."""
    forms = {
        "text/plain": "'quoted'",
        "text/html": "<b>",
        "text/markdown": "*m*",
        "text/latex": "$l$",
        "application/json": {"a": 1},
        "application/javascript": "j",
        "application/pdf": "cGRm",
        "application/vnd.mine+json": {"own": True},
    }

    async def shows(cell: Cell) -> None:
        cell.display({"image/png": "aVZCT1I=", "text/plain": "<Figure>"})
        cell.display({"image/svg+xml": "<svg/>"})
        cell.display(dict(forms), "execute_result")

    backend.scripts["show"] = shows
    async with e2b_api(backend) as api:
        answer = await at(api, await new(api), "POST", "/execute", {"code": "show"})
        lines = [json.loads(each) for each in answer.body.splitlines()]
        png, svg, main = [line for line in lines if line["type"] == "result"]
        assert (png["png"], png["text"], png["is_main_result"]) == ("aVZCT1I=", "<Figure>", False)
        assert (svg["svg"], svg["is_main_result"]) == ("<svg/>", False)
        assert main["is_main_result"] is True
        assert (main["text"], main["html"], main["markdown"]) == ("quoted", "<b>", "*m*")
        assert (main["latex"], main["json"], main["javascript"]) == ("$l$", {"a": 1}, "j")
        assert (main["pdf"], main["extra"]) == (
            "cGRm",
            {"application/vnd.mine+json": {"own": True}},
        )


async def test_a_signed_url_without_a_valid_signature_is_refused(backend: FakeBackend) -> None:
    """A signature that is none of an open sandbox opens nothing."""
    async with e2b_api(backend) as api:
        await new(api)
        forged = hashlib.sha256(b"a:read:user:token").hexdigest()
        path = f"/files?path=a&username=user&signature=v1_{forged}"
        assert (await api.ask("GET", path, token=None)).status == 401


async def test_the_native_api_sees_the_same_sessions(backend: FakeBackend) -> None:
    """A sandbox of E2B's is a session of the native API, and the other way round."""
    async with e2b_api(backend) as api:
        created = await new(api)
        body = {"session_id": "native", "metadata": {"n": 1}}
        assert (await api.ask("POST", "/api/v1/sessions", body, token="acme")).status == 201
        native = (await api.ask("GET", "/api/v1/sessions", token="acme")).json["sessions"]
        assert {each["session_id"] for each in native} == {created["sandboxID"], "native"}
        assert native[0]["metadata"] == {"of": "me"}
        listed = (await ask(api, "GET", "/v2/sandboxes")).json
        assert {each["sandboxID"]: each["metadata"] for each in listed} == {
            created["sandboxID"]: {"of": "me"},
            "native": {"n": "1"},
        }
        connected = (await ask(api, "POST", "/v2/sandboxes/native/connect", {})).json
        answer = await at(api, connected, "POST", "/execute", {"code": "1"})
        assert answer.body.splitlines()[-1] == b'{"type":"end_of_execution"}'
