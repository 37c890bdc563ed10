"""The broker without kernels: its start, the addresses where it listens, and its stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import json
import os
import shutil
import signal
import ssl
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelbroker.protocol.events import Result, Stdout
from kernelbroker.protocol.messages import Closed
from kernelbroker.protocol.runtime_file import runtime_file
from kernelbroker_server import app, factories
from kernelbroker_server.__main__ import _serve
from kernelbroker_server.app import Broker
from kernelbroker_server.audit import Audit
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.backend_set import BackendSet
from kernelbroker_server.backends.base import BackendUnavailable, Isolation, LaunchError
from kernelbroker_server.config import ConfigError, Settings
from kernelbroker_server.mcp.factory import SEAL_KEY
from kernelbroker_server.paths import MARK
from kernelbroker_server.state_factory import STATE
from kernelbroker_server.supervisor import Supervisor
from kernelbroker_server.tenants.tokens import TokenFile
from pydantic import ValidationError
from tornado.httpclient import AsyncHTTPClient, HTTPClientError
from websockets.asyncio.client import connect

from tests.support.backend import FakeSandbox, fake_backend
from tests.support.http import Socket
from tests.support.requires import require
from tests.support.waiting import DEADLINE_S, until
from tests.support.world import Breakpoint, deaf


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine without bubblewrap, and a short path for all that a broker writes."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        programs = Path(name, "bin")
        programs.mkdir()
        for program in ("rm", "chmod"):
            found = shutil.which(program)
            assert found is not None
            (programs / program).symlink_to(found)
        monkeypatch.setenv("PATH", str(programs))
        monkeypatch.setenv("KERNELBROKER_RUNTIME_FILE", f"{name}/run time/broker.json")
        yield Path(name)


def left_in(data_dir: Path) -> list[str]:
    """What a broker has left there besides its state, which outlives it."""
    return [path.name for path in data_dir.iterdir() if path.name not in (STATE, MARK)]


def settings(directory: Path, **options: Any) -> Settings:
    local = {
        "kernel_python": Path(sys.executable),
        "bubblewrap": "no-such-program",
        "data_dir": directory / "data",
        "run_dir": directory / "run",
    }
    local |= options.pop("local", {})
    values = {"port": 0, "pool": {"min_size": 0}, "shutdown_timeout": 2, **options}
    return Settings(local=local, **values)


def the_file() -> Path:
    return runtime_file(os.environ, os.getuid())


async def test_start_and_stop(directory: Path) -> None:
    """A broker serves from start to stop, and leaves no file, directory or port."""
    broker = Broker(settings(directory))
    await broker.start()
    client = AsyncHTTPClient(force_instance=True)
    try:
        health = json.loads((await client.fetch(f"{broker.url}/health")).body)
        assert (health["status"], health["isolation"]) == ("ok", "process")
        with pytest.raises(HTTPClientError, match="401"):
            await client.fetch(f"{broker.url}/api/v1/sessions")
        headers = {"Authorization": f"Bearer {broker.token}"}
        sessions = await client.fetch(f"{broker.url}/api/v1/sessions", headers=headers)
        assert json.loads(sessions.body) == {"sessions": []}
    finally:
        async with asyncio.timeout(10):
            await broker.stop()
            await broker.stop()
    with pytest.raises(OSError):
        await client.fetch(f"{broker.url}/health")
    client.close()
    assert left_in(directory / "data") == []
    assert list((directory / "run").iterdir()) == []
    assert not the_file().exists()


@pytest.mark.parametrize("names", [["precious"], ["notes.txt"], ["workspaces", "lost+found"]])
async def test_a_directory_of_others_is_refused(directory: Path, names: list[str]) -> None:
    """A directory of data that has other files is refused, and they stay."""
    data = directory / "data"
    for name in names:
        (data / name).mkdir(parents=True)
        (data / name / "lock").touch()
    with pytest.raises(ConfigError, match=rf"local\.data_dir: .*{names[0]}.*empty directory"):
        Broker(settings(directory))
    assert sorted(each.name for each in data.iterdir()) == sorted(names)
    assert all((data / name / "lock").exists() for name in names)


async def test_what_others_put_into_the_directory_of_data_stays(directory: Path) -> None:
    """An empty directory is taken; what others put there later stays, also if it looks like ours."""
    data = directory / "data"
    (data / "lost+found").mkdir(parents=True)
    for _ in range(2):
        broker = Broker(settings(directory))
        await broker.start()
        await broker.stop()
        for name in ("precious", "0123abcd"):
            (data / name / "sandboxes").mkdir(parents=True, exist_ok=True)
            (data / name / "lock").touch()
    assert sorted(left_in(data)) == ["0123abcd", "lost+found", "precious"]


async def test_the_directory_of_data_may_hold_what_the_settings_name(directory: Path) -> None:
    """Logs and the state may lie in the directory of data, and are there before its first broker."""
    data = directory / "data"
    (data / "mine").mkdir(parents=True)
    (data / "log").touch()
    broker = Broker(settings(directory, state_dir=str(data / "mine"), log_file=data / "log"))
    await broker.start()
    await broker.stop()
    assert (data / MARK).is_file()


async def initialize(broker: Broker) -> int:
    """The status of an MCP client's first message."""
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    hello = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params}
    headers = {
        "Authorization": f"Bearer {broker.token}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
    }
    client = AsyncHTTPClient(force_instance=True)
    answer = await client.fetch(
        f"{broker.url}/mcp",
        method="POST",
        body=json.dumps(hello),
        headers=headers,
        raise_error=False,
    )
    client.close()
    return answer.code


@pytest.mark.parametrize(("enabled", "status"), [(None, 200), (False, 404)])
async def test_mcp_is_served_unless_it_is_off(
    directory: Path, enabled: bool | None, status: int
) -> None:
    """A broker serves /mcp, also after a restart, with the same key for what clients echo."""
    keys = []
    for _ in range(2):
        broker = Broker(settings(directory, mcp={"enabled": enabled}))
        await broker.start()
        try:
            assert await initialize(broker) == status
        finally:
            await broker.stop()
        key = directory / "data" / STATE / SEAL_KEY
        if status == 200:
            assert stat.S_IMODE(key.stat().st_mode) == 0o600
            keys.append(key.read_bytes())
        else:
            assert not key.exists()
    assert len(set(keys)) == (status == 200)


async def test_mcp_without_its_packages(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker without the extra serves no MCP; one that is told to serve it says what to install."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "mcp" else find_spec(name)
    )
    broker = Broker(settings(directory))
    await broker.start()
    try:
        assert await initialize(broker) == 404
    finally:
        await broker.stop()
    broker = Broker(settings(directory, mcp={"enabled": True}))
    with pytest.raises(ConfigError, match=r"pip install 'kernelbroker-server\[mcp\]'"):
        await broker.start()


LATE = [
    "_adoption.run",
    "tenants.resume_asleep",
    "_workspaces.start",
    "_webhooks.resume",
    "runtime file",
]


@pytest.mark.parametrize("step", LATE)
async def test_a_start_that_fails_late(
    directory: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What has been started is stopped: the port, the pools and the store. The next broker starts."""

    def fail(*_: object) -> None:
        raise OSError("no room")

    broker = Broker(settings(directory))
    with monkeypatch.context() as patched:
        if step == "runtime file":
            patched.setattr(app.runtime_file, "write", fail)
        else:
            *path, attribute = step.split(".")
            owner: Any = broker
            for part in path:
                owner = getattr(owner, part)
            patched.setattr(owner, attribute, fail)
        with pytest.raises(OSError, match="no room"):
            await broker.start()
    assert broker._sockets and all(each.fileno() == -1 for each in broker._sockets)
    assert not procfs.started_in(directory)
    following = Broker(settings(directory))
    await following.start()
    await following.stop()


STEPS = [
    "_forget_runtime_file",
    "_stop_listening",
    "tenants.stop",
    "_workspaces.stop",
    "_close_websockets",
    "pools.default.stop",
    "backends.stop",
    "supervisor.stop",
    "_close_traces",
    "_close_connections",
    "_close_audit",
]


@pytest.mark.parametrize("hangs", [False, True], ids=["raises", "hangs"])
@pytest.mark.parametrize("step", STEPS)
async def test_a_step_of_the_shutdown_that_fails(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
    hangs: bool,
) -> None:
    """If a step fails, all other steps run: the backend is stopped, the port is closed."""
    monkeypatch.setattr(app, "_STEP_TIMEOUT_S", 1.0)
    monkeypatch.setattr(app, "_REMOVAL_S", 1.0)
    monkeypatch.setattr(app, "_LAST_WORDS_S", 0.1)
    ran: list[str] = []

    async with fake_backend() as backend, contextlib.AsyncExitStack() as stack:
        backends = BackendSet({"local": backend}, "local")
        monkeypatch.setattr(factories, "backends", lambda *_: backends)
        broker = Broker(settings(directory, shutdown_timeout=1.0))
        await broker.start()
        patches = stack.enter_context(pytest.MonkeyPatch.context())
        for name in STEPS:
            *path, attribute = name.split(".")
            owner: Any = broker
            for part in path:
                owner = owner[part] if isinstance(owner, dict) else getattr(owner, part)
            original = getattr(owner, attribute)

            async def run(
                *args: Any, name: str = name, original: Any = original, **options: Any
            ) -> None:
                ran.append(name)
                await original(*args, **options)
                if name == step:
                    if hangs:
                        await asyncio.Event().wait()
                    raise RuntimeError("unexpected")

            patches.setattr(owner, attribute, run)
        port = int(broker.url.rpartition(":")[2])
        async with asyncio.timeout(20):
            await broker.stop()
        assert ran == STEPS
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        assert [record.levelname for record in caplog.records] == (
            ["WARNING"] if hangs else ["ERROR"]
        )


@pytest.mark.parametrize("works", [False, True])
async def test_first_launches_that_fail(
    directory: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    """If the first launches of every template fail, the process ends with the reason."""

    async def fail(sandbox: FakeSandbox) -> None:
        if not (works and sandbox.spec.template == "other"):
            raise LaunchError(f"the image of {sandbox.spec.template} is missing")

    templates = {"default": {}, "other": {}, "idle": {"pool": {"min_size": 0}}}
    async with fake_backend() as backend:
        backend.on_launch = fail
        backends = BackendSet({"local": backend}, "local")
        monkeypatch.setattr(factories, "backends", lambda *_: backends)
        serving = asyncio.create_task(
            _serve(settings(directory, templates=templates, pool={"min_size": 1}))
        )
        async with asyncio.timeout(DEADLINE_S):
            if works:
                await until(lambda: len(backend.live) == 1)
                os.kill(os.getpid(), signal.SIGTERM)
                assert await serving == 0
            else:
                with pytest.raises(BackendUnavailable) as caught:
                    await serving
                for name in ("default", "other"):
                    assert f"template {name}: the image of {name} is missing" in str(caught.value)
        assert backend.live == {}


async def test_runtime_file(directory: Path) -> None:
    """Only clients of this user can read the runtime file, while the broker runs."""
    broker = Broker(settings(directory))
    await broker.start()
    try:
        file = the_file()
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        content = json.loads(file.read_text())
        assert content == {"url": broker.url, "token": broker.token, "pid": os.getpid()}
        assert [path.name for path in file.parent.iterdir()] == [file.name]
    finally:
        await broker.stop()
    assert not file.exists()


async def test_runtime_file_of_another_broker(directory: Path) -> None:
    """A broker that stops does not remove the file of a newer one."""
    broker = Broker(settings(directory))
    await broker.start()
    newer = json.dumps({"url": "http://127.0.0.1:1", "token": "t", "pid": 1})
    the_file().write_text(newer)
    await broker.stop()
    assert the_file().read_text() == newer


@pytest.mark.parametrize("content", ["", "{", "[]", "3", '"x"', "{}"])
async def test_invalid_runtime_file_at_the_end(directory: Path, content: str) -> None:
    """The broker stops in order even if the file was changed or removed."""
    broker = Broker(settings(directory))
    await broker.start()
    the_file().write_text(content)
    await broker.stop()
    assert left_in(directory / "data") == []


async def test_runtime_file_that_cannot_be_written(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If the file cannot be written, the broker runs, and the log says what clients need."""
    (directory / "run time").write_text("in the way")
    broker = Broker(settings(directory))
    await broker.start()
    await broker.stop()
    assert "give clients the URL and the token" in caplog.text
    assert broker.token not in caplog.text


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_no_isolation_means_loopback(directory: Path, host: str) -> None:
    """If code would run as a plain process, the broker listens on loopback only."""
    broker = Broker(settings(directory, host=host))
    with pytest.raises(ConfigError, match=r"without isolation.*host"):
        await broker.start()
    assert broker.backends.isolation is Isolation.PROCESS
    assert left_in(directory / "data") == []
    assert not the_file().exists()


async def test_exposed_on_purpose(directory: Path) -> None:
    """With `unsafe_expose_without_isolation` the broker listens on other addresses as well."""
    broker = Broker(settings(directory, host="0.0.0.0", unsafe_expose_without_isolation=True))
    await broker.start()
    try:
        port = int(broker.url.rpartition(":")[2])
        _, writer = await asyncio.open_connection("127.0.0.2", port)  # more than the default one
        writer.close()
    finally:
        await broker.stop()


async def test_required_isolation(directory: Path) -> None:
    """With `require_isolation` the broker does not start without a jail."""
    broker = Broker(settings(directory, local={"require_isolation": True}))
    with pytest.raises(BackendUnavailable, match="bubblewrap"):
        await broker.start()
    assert left_in(directory / "data") == []


async def test_address_of_another_machine(directory: Path) -> None:
    """An address of another machine is refused, with advice."""
    broker = Broker(
        settings(directory, host="localhost.invalid", unsafe_expose_without_isolation=True)
    )
    with pytest.raises(ConfigError, match=r"localhost\.invalid.*KERNELBROKER_HOST"):
        await broker.start()
    assert left_in(directory / "data") == []


@pytest.mark.filterwarnings(  # Tornado's bind_sockets leaves the socket that it could not bind
    "ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"
)
async def test_port_in_use(directory: Path) -> None:
    """A port in use is refused, and nothing is left."""
    first = Broker(settings(directory))
    await first.start()
    port = int(first.url.rpartition(":")[2])
    second = Broker(settings(directory, port=port, state_dir=str(directory / "state")))
    with pytest.raises(ConfigError, match=rf"port {port}: .*in use\. .*KERNELBROKER_PORT"):
        await second.start()
    gc.collect()
    await second.stop()
    assert the_file().exists()
    await first.stop()
    assert left_in(directory / "data") == []


async def test_clients_at_the_end(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the broker stops, each client has its result and the reason before the connection ends."""
    async with fake_backend() as backend, contextlib.AsyncExitStack() as stack:
        backend.scripts["deaf"] = deaf
        backends = BackendSet({"local": backend}, "local")
        monkeypatch.setattr(factories, "backends", lambda *_: backends)
        broker = Broker(settings(directory, token="the-token"))
        await broker.start()
        url = broker.url.replace("http", "ws") + "/api/v1/ws"
        headers = {"Authorization": "Bearer the-token"}
        clients = []
        for _ in range(3):
            connection = connect(url, additional_headers=headers, proxy=None)
            clients.append(Socket(await stack.enter_async_context(connection)))
        for client in clients[:2]:
            await client.open(session_id="mine")
        await clients[0].send("execute", code="deaf", execution_id="e")
        await clients[1].until(Stdout)
        async with asyncio.timeout(5):
            await broker.stop()
        for client in clients[:2]:
            assert (
                await client.until(Result)
            ).error == "SessionClosed: the broker is shutting down"
            assert (await client.get()) == Closed(reason="the broker is shutting down")
        assert [(await client.closed())[0] for client in clients] == [1001] * 3
        assert backend.live == {}


async def test_clients_while_it_drains(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients of idle sessions are notified at once, other clients when their cell has ended."""
    async with fake_backend() as backend, contextlib.AsyncExitStack() as stack:
        hold = Breakpoint()
        backend.scripts["hold"] = hold
        backends = BackendSet({"local": backend}, "local")
        monkeypatch.setattr(factories, "backends", lambda *_: backends)
        pool = {"min_size": 2, "max_size": 4}
        broker = Broker(settings(directory, token="the-token", pool=pool, shutdown="close"))
        await broker.start()
        url = broker.url.replace("http", "ws") + "/api/v1/ws"
        headers = {"Authorization": "Bearer the-token"}
        idle, busy = [
            Socket(
                await stack.enter_async_context(
                    connect(url, additional_headers=headers, proxy=None)
                )
            )
            for _ in range(2)
        ]
        await idle.open(session_id="idle")
        await busy.open(session_id="busy")
        await busy.send("execute", code="hold", execution_id="e")
        await hold.reached()
        await until(lambda: broker.pools["default"].status().idle_containers == 2)
        draining = asyncio.create_task(broker.drain())
        assert (await idle.get()) == Closed(reason="the broker is shutting down")
        assert (await idle.closed())[0] == 1001
        with pytest.raises(HTTPClientError) as refused:
            await AsyncHTTPClient().fetch(
                f"{broker.url}/api/v1/sessions/idle", headers=headers, raise_error=True
            )
        assert refused.value.code == 410
        hold.go_on.set()
        assert (await busy.until(Result)).success
        assert (await busy.get()) == Closed(reason="the broker is shutting down")
        async with asyncio.timeout(5):
            await draining
            assert backend.launched == 4  # none replaces those that were in use
            await broker.stop()
        assert backend.live == {}


def test_unusable_settings(directory: Path) -> None:
    """The error for an empty token, or a missing Python of the kernels, gives advice."""
    with pytest.raises(ConfigError, match="token is empty"):
        Broker(settings(directory, token=""))
    with pytest.raises(ConfigError, match="kernel_python"):
        Broker(settings(directory, local={"kernel_python": None}))


def test_proxy_connections_are_shared(directory: Path) -> None:
    """Connections are shared by the sandboxes of all templates with an allow list."""
    pools = {"web": {"network": "allowlist", "pool": {"max_size": 16}}, "closed": {}}
    its_settings = settings(directory, templates=pools)
    proxy = factories.proxy(its_settings, Audit(None), None, Supervisor())
    assert proxy._limits.connections == 256 // 16


def test_a_token_in_a_file(directory: Path) -> None:
    """The token is read without its line end; an unusable file gives an error with the reason."""
    file = directory / "token"
    with pytest.raises(ConfigError, match=r"token_file cannot be read.*token"):
        Broker(settings(directory, token_file=file))
    file.write_text("\n")
    with pytest.raises(ConfigError, match="token is empty"):
        Broker(settings(directory, token_file=file))
    file.write_text("mine\n")
    assert Broker(settings(directory, token_file=file)).token == "mine"
    with pytest.raises(ConfigError, match="both set"):
        Broker(settings(directory, token_file=file, token="other"))


async def started_once(settings: Settings, **options: Any) -> str | None:
    """The token of a broker that has been started and stopped."""
    broker = Broker(settings, **options)
    await broker.start()
    await broker.stop()
    return broker.token


async def test_a_token_that_was_made_is_kept(directory: Path) -> None:
    """Brokers with one state directory have one token, which only their user can read."""
    own, file = settings(directory), directory / "data" / STATE / "token"
    Broker(own)  # it is not started, and leaves nothing
    assert not file.exists()
    first = await started_once(own)
    assert first is not None
    assert len(first) >= 32
    assert (file.read_text().strip(), stat.S_IMODE(file.stat().st_mode)) == (first, 0o600)
    assert await started_once(own) == first
    second = await started_once(own, new_token=True)
    assert second != first
    assert await started_once(own) == second
    assert Broker(settings(directory, token="mine")).token == "mine"
    assert file.read_text().strip() == second


@pytest.mark.parametrize("content", ["", "short", "e2b_" + "0" * 47, "\x00" * 52, "\xff" * 52])
async def test_a_damaged_token_is_replaced(directory: Path, content: str) -> None:
    """A file without a whole token is no reason not to start; nobody gets in with what is left."""
    file = directory / "data" / STATE / "token"
    file.parent.mkdir(parents=True)
    file.write_text(content, "latin-1")
    token = await started_once(settings(directory))
    assert token is not None
    assert len(token) == 52
    assert file.read_text().strip() == token


async def test_without_a_state_each_broker_has_its_own_token(directory: Path) -> None:
    """Nothing is written where nothing may be kept."""
    own = settings(directory, state_dir="")
    assert await started_once(own) != await started_once(own)


def make_certificate(directory: Path) -> tuple[Path, Path]:
    """For 127.0.0.1, and its key."""
    require("openssl")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    command = ["/usr/bin/openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=broker", "-addext", "subjectAltName=IP:127.0.0.1"]
    command += ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


async def test_tls(directory: Path) -> None:
    """With a certificate and its key the broker serves only https."""
    certificate, key = make_certificate(directory)
    tls = {"certificate": certificate, "key": key}
    broker = Broker(settings(directory, tls=tls))
    await broker.start()
    client = AsyncHTTPClient(force_instance=True)
    try:
        assert broker.url.startswith("https://")
        health = await client.fetch(f"{broker.url}/health", ca_certs=str(certificate))
        assert health.code == 200
        with pytest.raises(ssl.SSLError):
            await client.fetch(f"{broker.url}/health")
        with pytest.raises(OSError):
            await client.fetch(broker.url.replace("https", "http") + "/health")
    finally:
        client.close()
        await broker.stop()


async def test_invalid_tls_files(directory: Path) -> None:
    """A file without a certificate ends the start; the error names the setting."""
    (directory / "none.pem").write_text("none")
    tls = {"certificate": directory / "none.pem", "key": directory / "none.pem"}
    with pytest.raises(ConfigError, match=r"tls\.certificate"):
        await Broker(settings(directory, tls=tls)).start()
    with pytest.raises(ValidationError, match="must both be set"):
        settings(directory, tls={"key": directory / "none.pem"})


@pytest.mark.parametrize("how", ["plain", "tls", "tokens_file"])
async def test_health_check(directory: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The images' health check finds the broker with any protocol and any tokens."""

    async def check() -> int:
        command = [sys.executable, "-I", "-m", "kernelbroker_server.health"]
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        _, complaint = await process.communicate()
        assert bool(complaint) == bool(process.returncode)
        return process.returncode or 0

    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    options: dict[str, Any] = {}
    if how == "tls":
        options["tls"] = dict(zip(("certificate", "key"), make_certificate(directory), strict=True))
    elif how == "tokens_file":
        options["tokens_file"] = directory / "tokens.json"
    assert await check() == 1
    broker = Broker(settings(directory, **options))
    await broker.start()
    try:
        assert await check() == 0
    finally:
        await broker.stop()
    assert await check() == 1


async def test_tokens_of_a_file(directory: Path) -> None:
    """With a token file only its current tokens are valid, and none is printed."""
    path = directory / "tokens.json"
    broker = Broker(settings(directory, tokens_file=path))
    assert broker.token is None
    await broker.start()
    token = TokenFile(path).create("acme")
    client = AsyncHTTPClient(force_instance=True)
    try:
        assert json.loads(the_file().read_text())["token"] is None
        headers = {"Authorization": f"Bearer {token}"}
        answer = await client.fetch(f"{broker.url}/api/v1/sessions", headers=headers)
        assert answer.code == 200
        TokenFile(path).revoke(token.split("_")[1])
        with pytest.raises(HTTPClientError, match="401"):
            await client.fetch(f"{broker.url}/api/v1/sessions", headers=headers)
    finally:
        client.close()
        await broker.stop()


def test_a_tenants_unknown_template(directory: Path) -> None:
    """An unknown template is named before the broker starts."""
    with pytest.raises(
        ValidationError, match=r"tenants\.acme\.templates: there is no template 'gpu'"
    ):
        settings(directory, tenants={"acme": {"templates": ["gpu"]}})
