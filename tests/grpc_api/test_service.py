"""`SandboxCodeService` with unmodified clients of grpcio, a real broker and real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import kernelbroker
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)
from kernelbroker.grpc import SandboxCodeServiceStub
from kernelbroker.grpc.sandbox_code_pb2 import (
    BuildRequest,
    CommandOutput,
    CommandRequest,
    CommitRequest,
    CreatePRRequest,
    EditRequest,
    ReadRequest,
    SearchRequest,
)
from kernelbroker.grpc.sandbox_code_pb2 import TestRequest as RunTests
from kernelbroker_server.tenants.tokens import TokenFile

from tests.e2e.support import BrokerProcess, free_port, until, whole_system
from tests.support.upstream import make_certificate

pytestmark = whole_system

SERVICE = "kernelbroker.v1.SandboxCodeService"
DEADLINE_S = 60.0
FILES = {
    "half.py": "def half(n):\n    return n / 2\n",
    "test_half.py": "from half import half\n\n\ndef test_half():\n    assert half(3) == 1\n",
    "Makefile": "all:\n\t@echo built\n",
    "bad.bin": "a\0b",
}


@dataclass
class World:
    broker: BrokerProcess
    address: str
    other_token: str
    audit: Path


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        directory = Path(name)
        other = TokenFile(directory / "tokens").create("other")
        port = free_port()
        settings: dict[str, object] = {
            "TOKEN": "mine",
            "TOKENS_FILE": directory / "tokens",
            "AUDIT_LOG": directory / "audit.log",
            "GRPC__PORT": port,
            "POOL__MIN_SIZE": 1,
            "POOL__MAX_SIZE": 4,
        }
        with BrokerProcess(directory, **settings).running() as broker:
            yield World(broker, f"127.0.0.1:{port}", other, directory / "audit.log")


@pytest.fixture
async def channel(world: World) -> AsyncIterator[grpc.aio.Channel]:
    async with grpc.aio.insecure_channel(world.address) as channel:
        async with asyncio.timeout(DEADLINE_S):
            await channel.channel_ready()
        yield channel


@pytest.fixture
async def session(world: World, tmp_path: Path) -> AsyncIterator[kernelbroker.Session]:
    for file, text in FILES.items():
        (tmp_path / file).write_text(text)
    async with (
        kernelbroker.connect(world.broker.url, "mine") as client,
        client.session() as session,
    ):
        await session.code.upload(tmp_path)
        yield session


class Client:
    """Calls of one session, with a token."""

    def __init__(self, channel: grpc.aio.Channel, sandbox_id: str, token: str = "mine") -> None:
        self.stub: Any = SandboxCodeServiceStub(channel)
        self.metadata = [("authorization", f"Bearer {token}"), ("sandbox-id", sandbox_id)]

    async def ask(self, method: str, request: Any, timeout: float = DEADLINE_S) -> Any:
        return await getattr(self.stub, method)(request, metadata=self.metadata, timeout=timeout)

    def stream(self, command: str, timeout: float = DEADLINE_S) -> Any:
        request = CommandRequest(command=command)
        return self.stub.StreamCommand(request, metadata=self.metadata, timeout=timeout)


@pytest.fixture
def client(channel: grpc.aio.Channel, session: kernelbroker.Session) -> Client:
    return Client(channel, session.session_id)


@contextlib.contextmanager
def refused(status: grpc.StatusCode, code: str, message: str | None = None) -> Iterator[None]:
    with pytest.raises(grpc.aio.AioRpcError, match=message) as caught:
        yield
    assert caught.value.code() is status
    assert dict(caught.value.trailing_metadata() or ())["kernelbroker-code"] == code


async def test_the_story(client: Client, session: kernelbroker.Session) -> None:
    """A project is read, searched, tested, mended, built and committed over gRPC."""
    read = await client.ask("ReadFile", ReadRequest(path="half.py"))
    assert (read.success, read.content, read.error) == (True, FILES["half.py"], "")
    assert (read.total_lines, read.encoding, read.size) == (2, "utf-8", len(FILES["half.py"]))
    part = await client.ask("ReadFile", ReadRequest(path="half.py", start=2, line_numbers=True))
    assert part.content == "     2\t    return n / 2"
    found = await client.ask("SearchFiles", SearchRequest(pattern=" half\\(", context=1))
    assert [(each.path, each.line) for each in found.matches] == [
        ("half.py", 1),
        ("test_half.py", 5),
    ]
    assert list(found.matches[1].before) == ["def test_half():"]
    literal = await client.ask("SearchFiles", SearchRequest(pattern="half(", regex=False, max=1))
    assert (len(literal.matches), literal.truncated) == (1, True)
    tested = await client.ask("RunTest", RunTests())
    assert (tested.success, tested.failed, tested.code) == (False, 1, "failed")
    assert (tested.failures[0].file, tested.failures[0].line) == ("test_half.py", 5)
    assert "1 failed" in tested.output
    edited = await client.ask(
        "EditFile", EditRequest(path="half.py", old="n / 2", new="n // 2", base=read.sha256)
    )
    assert "+    return n // 2" in edited.diff
    tested = await client.ask("RunTest", RunTests(target="test_half.py", framework="pytest"))
    assert (tested.success, tested.passed, tested.framework) == (True, 1, "pytest")
    assert tested.execution_id in [each.execution_id for each in await session.executions()]
    built = await client.ask("RunBuild", BuildRequest())
    assert (built.success, built.command, built.output, built.exit_code) == (
        True,
        "make",
        "built\n",
        0,
    )
    assert (await client.ask("EditFile", EditRequest(path="empty.py", content=""))).created
    await session.code.run("git init -q -b main .")
    committed = await client.ask("GitCommit", CommitRequest(message="half: whole numbers"))
    assert (committed.success, committed.branch) == (True, "main")
    assert sorted(committed.files) == sorted([*FILES, "empty.py"])
    log = (await session.code.git_log()).result["commits"]
    assert log[0]["subject"] == "half: whole numbers"


async def test_output_is_streamed(client: Client, session: kernelbroker.Session) -> None:
    """Output comes while the command runs, and the result is the last message."""
    call = client.stream("echo one; until [ -e go ]; do sleep 0.1; done; echo two >&2; exit 3")
    async with asyncio.timeout(DEADLINE_S):
        messages = aiter(call)
        assert await anext(messages) == CommandOutput(stdout="one\n")
        await session.files.write("project/go", b"")
        rest = [each async for each in messages]
    assert "".join(each.stderr for each in rest) == "two\n"
    result = rest[-1].result
    assert rest[-1].WhichOneof("output") == "result"
    assert (result.success, result.exit_code, result.code) == (False, 3, "failed")
    assert await call.code() is grpc.StatusCode.OK


async def test_refusals_are_responses(client: Client) -> None:
    """What the operation is refused for is in the response, with the code of the error."""
    outside = await client.ask("ReadFile", ReadRequest(path="/etc/passwd"))
    assert (outside.success, outside.content, outside.code) == (False, "", "security")
    assert outside.error
    missing = await client.ask("ReadFile", ReadRequest(path="missing"))
    assert missing.code == "not_found"
    binary = await client.ask("ReadFile", ReadRequest(path="bad.bin"))
    assert (binary.success, binary.binary, binary.content) == (True, True, "")
    assert (await client.ask("ReadFile", ReadRequest())).code in (
        "bad_request",
        "security",
        "conflict",
    )
    stale = await client.ask("EditFile", EditRequest(path="half.py", content="", base="0" * 64))
    assert (stale.success, stale.code) == (False, "stale")
    both = await client.ask("EditFile", EditRequest(path="half.py"))
    assert both.code == "bad_request"
    assert (await client.ask("SearchFiles", SearchRequest(pattern="("))).code == "bad_request"
    assert (await client.ask("RunTest", RunTests(framework="none"))).success is False
    late = await client.ask("RunBuild", BuildRequest(command="sleep 60", timeout=0.5))
    assert (late.success, late.code) == (False, "timeout")
    for seconds in (-1, 0, float("nan"), float("inf")):
        odd = await client.ask("RunBuild", BuildRequest(command="true", timeout=seconds))
        assert (odd.success, odd.code) == (False, "bad_request")
    request = CreatePRRequest(title="t", body="b", base="main")
    asked = await client.ask("GitCreatePR", request)
    assert (asked.success, bool(asked.error)) == (False, True)


async def test_tokens_and_sandboxes(
    world: World, channel: grpc.aio.Channel, session: kernelbroker.Session
) -> None:
    """Calls without a valid token, of other tenants and of no sandbox end with a status; it is audited."""
    request = ReadRequest(path="half.py")
    for token in ("wrong", "", "mine mine"):
        with refused(grpc.StatusCode.UNAUTHENTICATED, "unauthorized"):
            await Client(channel, session.session_id, token).ask("ReadFile", request)
    stub: Any = SandboxCodeServiceStub(channel)
    with refused(grpc.StatusCode.UNAUTHENTICATED, "unauthorized", "authorization"):
        await stub.ReadFile(request, timeout=DEADLINE_S)
    with refused(grpc.StatusCode.UNAUTHENTICATED, "unauthorized"):
        async for _ in stub.StreamCommand(CommandRequest(command="true"), timeout=DEADLINE_S):
            pass
    with refused(grpc.StatusCode.NOT_FOUND, "not_found"):
        await Client(channel, session.session_id, world.other_token).ask("ReadFile", request)
    with refused(grpc.StatusCode.NOT_FOUND, "not_found"):
        await Client(channel, "../unknown").ask("ReadFile", request)
    with refused(grpc.StatusCode.INVALID_ARGUMENT, "bad_request", "sandbox-id"):
        await stub.ReadFile(
            request, metadata=[("authorization", "bearer mine")], timeout=DEADLINE_S
        )
    records = [json.loads(line) for line in world.audit.read_text().splitlines()]
    routes = {each["route"] for each in records if each["event"] == "request.refused"}
    assert routes == {"/grpc/ReadFile", "/grpc/StreamCommand"}
    await session.close()
    with refused(grpc.StatusCode.NOT_FOUND, "session_gone", "its client closed it"):
        await Client(channel, session.session_id).ask("ReadFile", request)


async def test_calls_are_audited(
    world: World, client: Client, session: kernelbroker.Session
) -> None:
    """An operation over gRPC is in the audit log, and an execution has `grpc` as its client."""
    await client.ask("ReadFile", ReadRequest(path="half.py"))
    await client.ask("RunBuild", BuildRequest(command="true"))
    assert [each.client for each in await session.executions()] == ["grpc"]
    records = [json.loads(line) for line in world.audit.read_text().splitlines()]
    operations = [
        (each["operation"], each["path"])
        for each in records
        if each["event"] == "operation" and each["session"] == session.session_id
    ]
    assert operations == [("unpack", ""), ("read", "half.py"), ("build", "")]


async def ended(session: kernelbroker.Session, count: int) -> bool:
    executions = await session.executions()
    return [each.state for each in executions] == ["done"] * count


async def test_a_deadline_reaches_the_cell(client: Client, session: kernelbroker.Session) -> None:
    """When the deadline of a call is over, its command is interrupted, and the session goes on."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.ask("RunBuild", BuildRequest(command="sleep 600"), timeout=2)
    assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: ended(session, 1))
    (execution,) = await session.executions()
    assert "interrupted" in str(execution.error).lower()
    assert (await client.ask("RunBuild", BuildRequest(command="true"))).success


async def test_a_cancelled_call_ends_the_command(
    client: Client, session: kernelbroker.Session
) -> None:
    """A client that cancels a stream, or a call that waits for its turn, interrupts what it asked for."""
    call = client.stream("echo begun; sleep 600")
    async with asyncio.timeout(DEADLINE_S):
        assert (await call.read()).stdout == "begun\n"
    waiting = asyncio.create_task(client.ask("RunTest", RunTests()))

    async def both() -> bool:
        return len(await session.executions()) == 2

    await until(both)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    call.cancel()
    await until(lambda: ended(session, 2))
    assert (await client.ask("RunBuild", BuildRequest(command="true"))).success


async def test_a_client_that_goes_away(world: World, session: kernelbroker.Session) -> None:
    """A connection that breaks off ends its commands."""
    async with grpc.aio.insecure_channel(world.address) as channel:
        call = Client(channel, session.session_id).stream("echo begun; sleep 600")
        async with asyncio.timeout(DEADLINE_S):
            assert (await call.read()).stdout == "begun\n"
    await until(lambda: ended(session, 1))


async def test_garbage(world: World, channel: grpc.aio.Channel, client: Client) -> None:
    """Bytes that are no message, methods that do not exist, and no HTTP/2 end with an error."""
    raw = channel.unary_unary(f"/{SERVICE}/ReadFile")
    for payload in (b"\xff" * 100, b"\x0a\xff", b"\x0a\x02\xff\xfe"):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await raw(payload, metadata=client.metadata, timeout=DEADLINE_S)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await channel.unary_unary(f"/{SERVICE}/Fly")(b"", timeout=DEADLINE_S)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await client.ask("EditFile", EditRequest(path="x", content="x" * (21 * 2**20)))
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    host, _, port = world.address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + bytes(range(256)))
    async with asyncio.timeout(DEADLINE_S):
        await reader.read()
    writer.close()
    assert (await client.ask("ReadFile", ReadRequest(path="half.py"))).success


async def test_odd_text(client: Client) -> None:
    """A text is read as it is; output that no message can carry is replaced, and bounded."""
    exact = "one\r\ntwo"
    await client.ask("EditFile", EditRequest(path="exact.txt", content=exact))
    assert (await client.ask("ReadFile", ReadRequest(path="exact.txt"))).content == exact
    first = await client.ask("ReadFile", ReadRequest(path="exact.txt", end=1))
    assert first.content == "one\r\n"
    command = "printf 'a\\377b'; head -c 6000000 /dev/zero | tr '\\0' x"
    call = client.stream(command)
    async with asyncio.timeout(DEADLINE_S):
        output = [each async for each in call]
    text = "".join(each.stdout for each in output)
    assert text.startswith("a")
    assert len(text) < 3 * 2**20
    assert output[-1].result.exit_code == 0


async def test_health_and_reflection(world: World, channel: grpc.aio.Channel) -> None:
    """The health service and reflection need no token, and describe the service."""
    health: Any = health_pb2_grpc.HealthStub(channel)
    for name in ("", SERVICE):
        request = health_pb2.HealthCheckRequest(service=name)
        answer = await health.Check(request, timeout=DEADLINE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING

    def reflect() -> tuple[list[str], list[str]]:
        with grpc.insecure_channel(world.address) as channel:
            database = ProtoReflectionDescriptorDatabase(channel)
            names = list(database.get_services())
            file = database.FindFileContainingSymbol(SERVICE)
            return names, [each.name for each in file.service[0].method]

    names, methods = await asyncio.to_thread(reflect)
    assert SERVICE in names
    assert methods == [
        "ReadFile",
        "EditFile",
        "SearchFiles",
        "RunTest",
        "RunBuild",
        "GitCommit",
        "GitCreatePR",
        "StreamCommand",
    ]


async def test_tls(tmp_path: Path) -> None:
    """With the broker's certificate gRPC speaks TLS, and nothing else."""
    certificate, key, port = tmp_path / "cert.pem", tmp_path / "key.pem", free_port()
    make_certificate(certificate, key, ["localhost"])
    settings: dict[str, object] = {
        "TOKEN": "mine",
        "GRPC__PORT": port,
        "TLS__CERTIFICATE": certificate,
        "TLS__KEY": key,
        "POOL__MIN_SIZE": 0,
    }
    with BrokerProcess(tmp_path, **settings).running():
        trusted = grpc.ssl_channel_credentials(certificate.read_bytes())
        address = f"localhost:{port}"
        async with grpc.aio.secure_channel(address, trusted) as channel:
            async with asyncio.timeout(DEADLINE_S):
                await channel.channel_ready()
            with refused(grpc.StatusCode.NOT_FOUND, "not_found"):
                await Client(channel, "unknown").ask("ReadFile", ReadRequest(path="x"))
        async with grpc.aio.insecure_channel(address) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await Client(channel, "unknown").ask("ReadFile", ReadRequest(path="x"), 5)
            assert caught.value.code() in (
                grpc.StatusCode.UNAVAILABLE,
                grpc.StatusCode.DEADLINE_EXCEEDED,
            )


def test_a_port_that_is_taken(world: World, tmp_path: Path) -> None:
    """A broker whose gRPC port another program has says so, and does not start."""
    port = int(world.address.rpartition(":")[2])
    broker = BrokerProcess(tmp_path, GRPC__PORT=port, POOL__MIN_SIZE=0)
    with pytest.raises(AssertionError, match=rf"grpc.port {port}: Address already in use"):
        broker.start()


async def test_the_example_of_the_page(
    world: World, session: kernelbroker.Session, tmp_path: Path
) -> None:
    """The program of docs/grpc.md prints what the page says."""
    page = (Path(__file__).parents[2] / "docs" / "grpc.md").read_text()
    (program,) = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (printed,) = re.findall(r"^```text\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    own = program.replace("127.0.0.1:50051", world.address)
    assert own != program
    environ = {**world.broker.client_environ, "KERNELBROKER_TOKEN": "mine"}
    environ["KERNELBROKER_URL"] = world.broker.url
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", own],
        env=environ,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == printed, done.stderr[-3000:]
