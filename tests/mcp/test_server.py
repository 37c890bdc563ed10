"""The server at `/mcp`: who may use it, and what it does with what is wrong or too much."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from kernelbroker_server.mcp.handler import MAX_BODY_BYTES, allowed_hosts
from kernelbroker_server.pool.state import PoolLimits
from kernelbroker_server.tenants.jwt_tokens import Issuer, JwtTokens
from kernelbroker_server.tenants.keyring import Keyring
from kernelbroker_server.tenants.tenant import Tenants
from mcp_types import CallToolResult

from tests.api.test_tenants import Names
from tests.support.backend import FakeBackend
from tests.support.gateway import Cell
from tests.support.http import TOKEN, Answer
from tests.support.mcp import ERAS, Era, McpApi, mcp_api, text_of
from tests.support.waiting import until
from tests.support.world import Breakpoint, interruptible

HEADERS = {
    "Accept": "application/json, text/event-stream",
    "Content-Type": "application/json",
    "MCP-Protocol-Version": "2026-07-28",
    "Mcp-Method": "tools/list",
}


def error_of(answer: Answer) -> Any:
    """The error of an answer, which must be one of JSON-RPC."""
    assert answer.json["jsonrpc"] == "2.0"
    error = answer.json["error"]
    assert isinstance(error["code"], int) and error["message"]
    return error


async def test_a_token_is_needed(api: McpApi) -> None:
    """Without a valid token the answer is 401, and says how to authenticate."""
    for token in (None, "wrong"):
        answer = await api.api.ask("POST", "/mcp", {}, headers=HEADERS, token=token)
        assert answer.status == 401 and answer.headers["www-authenticate"].startswith("Bearer")
        assert "Authorization: Bearer" in error_of(answer)["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 400),
        ({"Origin": "http://broker"}, 400),
        ({"Origin": "https://app.example.org"}, 400),
        ({"Origin": "https://evil.example.org"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
async def test_host_and_origin_are_checked(
    backend: FakeBackend, headers: dict[str, str], status: int
) -> None:
    """Pages of other origins, and names that were rebound to the broker's address, are refused."""
    options = {"allowed_origins": frozenset({"https://app.example.org"})}
    hosts = ["localhost", "127.0.0.1", "broker"]
    async with mcp_api(backend, hosts=hosts, serving_options=options) as api:
        answer = await api.api.ask("POST", "/mcp", {}, headers={**HEADERS, **headers})
        assert answer.status == status
        error_of(answer)


async def test_a_name_that_is_not_the_brokers_is_refused(backend: FakeBackend) -> None:
    """The name of an attacker may have been rebound to the broker's address."""
    async with mcp_api(backend, hosts=["localhost"]) as api:
        answer = await api.api.ask("POST", "/mcp", {}, headers=HEADERS)
        assert answer.status == 421 and "mcp.allowed_hosts" in error_of(answer)["message"]


def test_hosts_of_a_broker_on_loopback_are_few() -> None:
    """On other addresses all names are allowed, until the operator names some."""
    assert allowed_hosts("127.0.0.1", on_loopback=True, named=()) == {
        "localhost",
        "127.0.0.1",
        "::1",
    }
    assert allowed_hosts("0.0.0.0", on_loopback=False, named=()) == frozenset()
    assert "ki.example.org" in allowed_hosts("::", on_loopback=False, named=["KI.example.org"])


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"jsonrpc": "2.0"}',
        b'{"jsonrpc": "2.0", "id": 1, "method": 5}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": []}',
        b'{"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": 1}}',
        b'{"jsonrpc": "2.0", "id": {}, "method": "tools/list"}',
        b'{"jsonrpc": "2.0", "id": 1, "result": {}}',
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "\ud800"}).encode(),
    ],
    ids=repr,
)
@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25", "9999-99-99", None])
async def test_garbage_is_answered_with_an_error(
    api: McpApi, body: bytes, version: str | None
) -> None:
    """Whatever is sent, the answer is an error of JSON-RPC, or an acknowledged notification."""
    headers = {**HEADERS, "MCP-Protocol-Version": version or ""}
    if version is None:
        del headers["MCP-Protocol-Version"]
    answer = await api.api.ask("POST", "/mcp", body, headers=headers)
    assert 200 <= answer.status < 500
    if answer.body:
        error_of(answer)
    else:
        assert answer.status == 202
    assert "result" in await api.post("tools/list", {})


@pytest.mark.parametrize(
    "params",
    [
        {"name": "nothing"},
        {"name": "x" * 10_000},
        {"name": 1},
        {"arguments": {}},
        {"name": "run_code", "arguments": []},
        {"name": "run_code", "requestState": "v1.x"},
        {"name": "run_code", "requestState": 1},
    ],
    ids=lambda params: str(params)[:40],
)
async def test_a_malformed_call_is_an_error(api: McpApi, params: dict[str, Any]) -> None:
    """An unknown tool, and parameters of the wrong types, are errors of the protocol."""
    headers = {**HEADERS, "Mcp-Method": "tools/call", "Mcp-Name": str(params.get("name", "x"))}
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    message = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {**params, "_meta": meta},
    }
    answer = await api.api.ask("POST", "/mcp", message, headers=headers)
    assert -33_000 < error_of(answer)["code"] < -32_000


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"code": 1},
        {"code": "1", "colour": "red"},
        {"code": "1", "language": "cobol"},
        {"code": "1", "timeout": -1},
        {"code": "1", "timeout": 1e9},
        {"code": "1", "timeout": 0.5},
        {"code": "1", "timeout": 301},
        {"code": "1", "session_id": "../../etc"},
        {"code": "x" * 200_000},
        {"code": "\0\ud800"},
    ],
    ids=lambda arguments: str(arguments)[:40],
)
async def test_wrong_arguments_are_errors_of_the_tool(
    api: McpApi, backend: FakeBackend, arguments: dict[str, Any]
) -> None:
    """The model reads what is wrong, and can correct it."""
    result = (await api.post("tools/call", {"name": "run_code", "arguments": arguments}))["result"]
    if arguments.get("code") == "\0\ud800":  # lone surrogates are code like any other
        assert [each["type"] for each in result["content"]] == ["text"]
        return
    assert result["isError"], result
    assert result["content"][0]["text"].startswith("bad_request: ")
    assert backend.cells == []


async def test_a_message_that_is_too_large_is_refused(api: McpApi) -> None:
    """The answer is 413, and the connection's client can read it."""
    body = b'{"jsonrpc": "2.0", "id": 1, "method": "' + b"x" * MAX_BODY_BYTES + b'"}'
    answer = await api.api.ask("POST", "/mcp", body, headers=HEADERS)
    assert answer.status == 413 and "4,194,304" in error_of(answer)["message"]


@pytest.mark.parametrize("era", ERAS)
async def test_sessions_of_other_tenants_are_unknown(era: Era, backend: FakeBackend) -> None:
    """The error for another tenant's session is that for one that never was."""
    options = {"keyring": Names({})}
    async with mcp_api(backend, serving_options=options) as api:
        async with api.client(era, token="acme") as client:
            made = await client.call_tool("create_session", {"name": "of-acme"})
            assert not made.is_error
        async with api.client(era, token="rival") as client:
            for name, arguments in [
                ("run_code", {"code": "1"}),
                ("list_files", {}),
                ("read_file", {"path": "x"}),
                ("write_file", {"path": "x", "content": ""}),
                ("get_table", {"name": "df"}),
                ("install_packages", {"packages": ["numpy"]}),
                ("interrupt", {}),
                ("restart_session", {}),
                ("close_session", {}),
            ]:
                answers = [
                    text_of(await client.call_tool(name, {**arguments, "session_id": session_id}))
                    for session_id in ("of-acme", "of-nobody")
                ]
                assert answers[0].replace("of-acme", "of-nobody") == answers[1]
                assert answers[0].startswith("not_found: ")
        assert backend.cells == []


async def test_a_connection_belongs_to_its_tenant(backend: FakeBackend) -> None:
    """The id of an older client's connection is unknown with another tenant's token."""
    async with mcp_api(backend, serving_options={"keyring": Names({})}) as api:
        hello = {
            "jsonrpc": "2.0",
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-11-25",
                "capabilities": {},
                "clientInfo": {"name": "t", "version": "1"},
            },
        }
        headers = {name: value for name, value in HEADERS.items() if not name.startswith("M")}
        async with api.api.exchange("POST", "/mcp", hello, headers=headers, token="acme") as opened:
            assert opened.status == 200
            connection = opened.headers["mcp-session-id"]
        listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {}}
        headers |= {"Mcp-Session-Id": connection, "MCP-Protocol-Version": "2025-11-25"}
        for token, status in (("rival", 404), ("acme", 200)):
            answer = await api.api.ask("POST", "/mcp", listing, headers=headers, token=token)
            assert answer.status == status


@pytest.mark.parametrize("era", ERAS)
async def test_much_output_fits_a_models_context(
    era: Era, api: McpApi, backend: FakeBackend
) -> None:
    """10 MB of output come as the beginning and the end, in some ten thousand characters."""

    async def floods(cell: Cell) -> None:
        for _ in range(10):
            cell.stdout("x" * 1023 * 1024 + "\n")
            await asyncio.sleep(0)
        cell.stdout("the end\n")

    backend.scripts["flood()"] = floods
    async with api.client(era) as client:
        result = await client.call_tool("run_code", {"code": "flood()"})
    assert len(text_of(result)) < 21_000 and "the end" in text_of(result)
    assert len(json.dumps(result.structured_content)) < 25_000


@pytest.mark.slow
@pytest.mark.parametrize("era", ERAS)
async def test_fifty_clients_at_once(era: Era, backend: FakeBackend) -> None:
    """Each gets its own result, or an error of the tool that says when to try again."""

    async def answers(cell: Cell) -> None:
        cell.stdout(cell.code)

    for number in range(50):
        backend.scripts[f"client({number})"] = answers
    limits = {"pool": PoolLimits(min_size=1, max_size=20, max_waiters=10)}
    async with mcp_api(backend, world_options={**limits, "acquire_timeout": 30}) as api:

        async def one(number: int) -> CallToolResult:
            async with api.client(era) as client:
                result = await client.call_tool("run_code", {"code": f"client({number})"})
                assert isinstance(result, CallToolResult)
                if not result.is_error:
                    assert result.structured_content["output"] == f"client({number})"
                    session_id = result.structured_content["session_id"]
                    await client.call_tool("close_session", {"session_id": session_id})
                return result

        results = await asyncio.gather(*map(one, range(50)))
    refused = [each for each in results if each.is_error]
    assert len(refused) < 50
    for each in refused:
        assert each.structured_content["error"]["name"] in ("too_many_requests", "unavailable")
        assert each.structured_content["retry_after"] > 0


async def test_a_client_that_hangs_up_ends_its_cell(api: McpApi, backend: FakeBackend) -> None:
    """A closed connection cancels the request of 2026-07-28, as its specification says."""
    backend.scripts["wait()"] = interruptible
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
        "progressToken": 1,
    }
    params = {"name": "run_code", "arguments": {"code": "wait()"}, "_meta": meta}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    headers = {**HEADERS, "Mcp-Method": "tools/call", "Mcp-Name": "run_code"}
    async with api.api.exchange("POST", "/mcp", message, headers=headers) as exchange:
        assert exchange.headers["content-type"] == "text/event-stream"
        (session,) = api.world.registry.list()
        assert session.state == "busy"
        exchange.hang_up()
        await until(lambda: session.state == "idle")


async def test_closing_the_session_ends_its_calls(api: McpApi, backend: FakeBackend) -> None:
    """A call whose session is closed meanwhile gets an error of the tool."""
    point = Breakpoint()
    backend.scripts["wait()"] = point
    session = await api.world.open("mine")
    async with api.client() as client:
        arguments = {"code": "wait()", "session_id": "mine"}
        call = asyncio.create_task(client.call_tool("run_code", arguments))
        await point.reached()
        await session.close("the test closed it")
        result = await call
        assert result.is_error and "the test closed it" in text_of(result)


async def test_the_server_can_be_stopped_while_calls_run(backend: FakeBackend) -> None:
    """Connections of older clients end with it, and no task is left."""
    backend.scripts["wait()"] = interruptible
    async with mcp_api(backend) as api, api.client("legacy") as client:
        call = asyncio.create_task(client.call_tool("run_code", {"code": "wait()"}))
        await until(lambda: backend.cells)
        await api.world.registry.list()[0].close("the broker stops")
        assert (await call).is_error


async def test_web_pages_of_allowed_origins_may_ask(backend: FakeBackend) -> None:
    """A preflight request names the headers of MCP."""
    options = {"allowed_origins": frozenset({"https://app.example.org"})}
    async with mcp_api(backend, serving_options=options) as api:
        headers = {
            "Origin": "https://app.example.org",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "mcp-protocol-version",
        }
        answer = await api.api.ask("OPTIONS", "/mcp", headers=headers, token=None)
        assert answer.status == 204
        assert "MCP-Protocol-Version" in answer.headers["access-control-allow-headers"]
    assert TOKEN


async def test_the_issuer_of_tokens_is_announced(backend: FakeBackend) -> None:
    """A client without a token learns where to get one (RFC 9728)."""
    issuer = Issuer("https://login.example.org", "broker", "/dev/null")
    options = {"keyring": Keyring(Tenants({}), TOKEN, jwt=JwtTokens(issuer))}
    async with mcp_api(backend, issuer=issuer, serving_options=options) as api:
        refused = await api.api.ask("POST", "/mcp/code", {}, headers=HEADERS, token=None)
        assert refused.status == 401
        where = refused.headers["www-authenticate"].partition('resource_metadata="')[2][:-1]
        assert where == "http://broker/.well-known/oauth-protected-resource/mcp/code"
        for path in ("", "/mcp", "/mcp/code"):
            announced = f"/.well-known/oauth-protected-resource{path}"
            answer = await api.api.ask("GET", announced, token=None)
            assert answer.json["resource"] == f"http://broker{path or '/mcp'}"
            assert answer.json["authorization_servers"] == ["https://login.example.org"]
        wrong = "/.well-known/oauth-protected-resource/api"
        assert (await api.api.ask("GET", wrong, token=None)).status in (401, 404)
    async with mcp_api(backend) as api:
        assert (await api.api.ask("GET", announced)).status == 404
