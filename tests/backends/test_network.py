"""The network policies of real sandboxes, on each backend that supports them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from ipaddress import ip_network
from pathlib import Path

import pytest
from docker.errors import NotFound
from kernelbroker_server.audit import Audit
from kernelbroker_server.backends.base import (
    Backend,
    LaunchError,
    Network,
    Sandbox,
    SandboxSpec,
)
from kernelbroker_server.egress.proxy import Proxy

from tests.support.requires import IMAGE, engine, requires
from tests.support.upstream import Names, Page, Upstream, serving_http
from tests.support.waiting import broker_tasks, cancelled_at

from .brokers import dead_broker, running
from .probes import BACKENDS, ask, networks_of, running_backend, running_docker, until

pytestmark = pytest.mark.sandbox

HOST = "files.example.org"

TRY = """
def through_proxy(host, port=80, method="GET"):
    "The first line of the proxy's answer."
    with socket.socket(socket.AF_UNIX) as proxy:
        proxy.settimeout(15)
        proxy.connect("/run/kernelbroker.egress")
        url = f"{host}:{port}" if method == "CONNECT" else f"http://{host}:{port}/"
        proxy.sendall(f"{method} {url} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\n\\r\\n".encode())
        return proxy.makefile().readline().strip()[:80]
"""


@pytest.fixture(params=BACKENDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with tempfile.TemporaryDirectory() as directory, serving_http(Path(directory), HOST) as server:
        server.pages["/"] = Page(b"hello")
        yield server


def allowing(*names: str, template: str = "default") -> SandboxSpec:
    """A spec with an allow list."""
    return SandboxSpec(template=template, network=Network.ALLOWLIST, allow=names)


@asynccontextmanager
async def running_with_proxy(
    kind: str, upstream: Upstream, log: Path | None = None
) -> AsyncIterator[Backend]:
    names = Names({HOST: [[upstream.address]], "other.example.org": [[upstream.address]]})
    proxy = Proxy(Audit(log), [ip_network("127.0.0.0/8")], names)
    async with running(kind, proxy=proxy) as backend:
        yield backend
    assert broker_tasks() == set()


def own_address() -> str:
    """An address of the host other than loopback; an unused address if there is none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(("192.0.2.1", 9))  # which sends nothing
        return str(probe.getsockname()[0])
    return "192.0.2.1"


async def test_none_reaches_nothing(kind: str, upstream: Upstream) -> None:
    """Host services, other sandboxes, the metadata service and resolvers do not answer."""
    with socket.create_server(("0.0.0.0", 0)) as service:
        port = service.getsockname()[1]
        addresses = [("127.0.0.1", port), (upstream.address, 80), (own_address(), port)]
        addresses += [("169.254.169.254", 80), ("172.17.0.1", port), ("172.17.0.2", 22)]
        source = """
def resolve(name):
    try:
        return socket.getaddrinfo(name, 80)
    except OSError as error:
        return type(error).__name__
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
result = [[attempt(socket.create_connection, tuple(address), 3) for address in addresses],
          [attempt(udp.sendto, b"x", (address, 53)) for address in ("8.8.8.8", "255.255.255.255")],
          attempt(socket.create_connection, ("::ffff:169.254.169.254", 80), 3),
          attempt(socket.socket, socket.AF_PACKET, socket.SOCK_RAW),
          attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1),
          resolve("example.org"), resolve("host.docker.internal"), resolve("other"),
          os.path.exists("/run/kernelbroker.egress"), os.environ.get("HTTP_PROXY")]"""
        async with running(kind) as backend:
            await backend.launch("other", SandboxSpec())
            sandbox = await backend.launch("one", SandboxSpec())
            tcp, udp, mapped, packet, raw, *names, through_proxy, proxy = await ask(
                sandbox, source, addresses=addresses
            )
    assert tcp[:2] == ["ECONNREFUSED"] * 2  # its own loopback, on which nothing listens
    assert tcp[2:] == ["ENETUNREACH"] * 4
    assert udp == ["ENETUNREACH"] * 2
    assert mapped == "ENETUNREACH"
    assert {packet, raw} <= {"EPERM", "EACCES"}
    assert names == ["gaierror"] * 3
    assert (through_proxy, proxy) == (False, None)


async def test_an_allow_list_is_enforced(kind: str, upstream: Upstream, tmp_path: Path) -> None:
    """Only listed names are reached, only through the proxy, and each attempt is recorded."""
    log = tmp_path / "audit.log"
    source = (
        TRY
        + """
result = [through_proxy(name), through_proxy(name, 443, "CONNECT"), through_proxy("other.example.org"),
          through_proxy("other.example.org", 443, "CONNECT"), through_proxy(address),
          through_proxy("169.254.169.254"), through_proxy(name, 22, "CONNECT"),
          attempt(socket.create_connection, (address, 80), 3),
          attempt(socket.create_connection, ("169.254.169.254", 80), 3),
          [name for _, name in socket.if_nameindex()], os.environ["https_proxy"],
          sys.argv[-2:]]"""
    )
    async with running_with_proxy(kind, upstream, log) as backend:
        sandbox = await backend.launch("one", allowing(HOST, template="web"))
        *answers, direct, metadata, interfaces, variable, options = await ask(
            sandbox, source, name=HOST, address=upstream.address
        )
    assert [answer.split()[1] for answer in answers] == ["200", "200", *["403"] * 5]
    assert direct == "ECONNREFUSED"  # a loopback address is its own
    assert metadata == "ENETUNREACH"
    assert interfaces == ["lo"]
    assert variable == "http://127.0.0.1:3128"
    assert options == ["--egress", "/run/kernelbroker.egress"]
    records = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(r["event"], r["template"], r["sandbox"]) for r in records} == {
        ("network.request", "web", "one")
    }
    found = [(r["method"], r["host"], r["port"], r["reason"]) for r in records]
    assert sorted(found, key=str) == sorted(
        [
            ("GET", HOST, 80, None),
            ("CONNECT", HOST, 443, "not_tls_for_host"),  # it hung up
            ("GET", "other.example.org", 80, "not_listed"),
            ("CONNECT", "other.example.org", 443, "not_listed"),
            ("GET", upstream.address, 80, "address_literal"),
            ("GET", "169.254.169.254", 80, "address_literal"),
            ("CONNECT", HOST, 22, "port"),
        ],
        key=str,
    )


async def test_each_sandbox_has_its_own_list(kind: str, upstream: Upstream) -> None:
    """Two sandboxes of one broker have different lists."""
    async with running_with_proxy(kind, upstream) as backend:
        one = await backend.launch("one", allowing(HOST))
        two = await backend.launch("two", allowing("other.example.org"))
        source = TRY + "result = [through_proxy(name).split()[1] for name in names]"
        names = [HOST, "other.example.org"]
        assert await ask(one, source, names=names) == ["200", "403"]
        assert await ask(two, source, names=names) == ["403", "200"]
        await backend.remove(one)
        assert await ask(two, source, names=names) == ["403", "200"]


async def test_the_egress_socket_cannot_be_replaced(kind: str, upstream: Upstream) -> None:
    """Only the egress socket answers, and code in the sandbox cannot replace it."""
    source = """
import stat
path = "/run/kernelbroker.egress"
places = ("/run", "/var", "/tmp", "/data", "/home", "/dev")
found = [os.path.join(top, name) for place in places for top, _, names in os.walk(place)
         for name in names if stat.S_ISSOCK(os.lstat(os.path.join(top, name)).st_mode)]
os.symlink("/tmp", "/data/link")
result = [found, attempt(os.unlink, path), attempt(os.rename, "/data/link", path),
          attempt(os.chmod, path, 0o777), attempt(os.rename, "/run", "/run2"),
          attempt(os.symlink, "/tmp", "/run/other")]"""
    async with running_with_proxy(kind, upstream) as backend:
        sandbox = await backend.launch("one", allowing(HOST))
        found, *verdicts = await ask(sandbox, source)
    assert set(found) <= {"/run/kernelbroker.egress", "/run/kernelbroker.handover/socket"}
    assert set(verdicts) <= {"EROFS", "EBUSY", "EXDEV", "EACCES", "EPERM"}


async def test_removal_closes_the_egress_socket(kind: str, upstream: Upstream) -> None:
    """A removal ends running requests and closes the socket."""
    async with running_with_proxy(kind, upstream) as backend:
        sandbox = await backend.launch("one", allowing(HOST))
        source = """
proxy = socket.socket(socket.AF_UNIX)
proxy.connect("/run/kernelbroker.egress")
proxy.sendall(f"CONNECT {name}:443 HTTP/1.1\\r\\nHost: {name}\\r\\n\\r\\n".encode())
sys.kept = proxy
result = proxy.recv(100).decode().split()[1]"""
        assert await ask(sandbox, source, name=HOST) == "200"
        await backend.remove(sandbox)
        assert broker_tasks() == set()


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        pytest.param(
            "local", Network.ALLOWLIST, marks=requires("bubblewrap", "the kernels' environment")
        ),
        pytest.param("docker", Network.ALLOWLIST, marks=requires("docker")),
        pytest.param("docker", Network.OPEN, marks=requires("docker")),
    ],
)
async def test_a_cancelled_launch_leaves_nothing(kind: str, network: Network) -> None:
    """A cancelled launch leaves no proxy socket, container or network."""
    spec = SandboxSpec(network=network, allow=(HOST,))
    async with running(kind) as backend:
        step = 1
        while await cancelled_at(backend.launch(f"s{step}", spec), step):
            await until(lambda: not broker_tasks())  # its removal goes on in the background
            step = max(step + 1, int(step * 1.25))
        assert step > 1
    assert broker_tasks() == set()


# Open


@contextmanager
def a_container() -> Iterator[tuple[str, str, int]]:
    """A service in a container on a separate network. Yields network, address and port."""
    name = f"kernelbroker-test-{secrets.token_hex(4)}"
    with engine() as api:
        api.create_network(name, driver="bridge")
        try:
            container = api.create_container(
                IMAGE,
                entrypoint=["python", "-m", "http.server", "8000", "--directory", "/tmp"],
                host_config=api.create_host_config(network_mode=name),
                name=name,
            )
            api.start(container)
            networks = api.inspect_container(container)["NetworkSettings"]["Networks"]
            yield name, networks[name]["IPAddress"], 8000
        finally:
            with contextlib.suppress(NotFound):
                api.remove_container(name, force=True)
            api.remove_network(name)


LISTEN = """
sys.kept = socket.create_server(("0.0.0.0", 8000))
result = socket.gethostbyname(socket.gethostname())"""
CONNECT = """
verdicts = [attempt(socket.create_connection, tuple(where), 3) for where in addresses]
result = [verdict.partition(":")[0] for verdict in verdicts]"""


@requires("docker")
async def test_an_open_network_excludes_other_sandboxes() -> None:
    """An open sandbox uses the engine's network; other sandboxes on it do not answer."""
    open_ = SandboxSpec(network=Network.OPEN)
    async with running_docker() as backend:
        one = await backend.launch("one", open_)
        two = await backend.launch("two", open_)
        shut = await backend.launch("three", SandboxSpec())
        (network,) = networks_of(two.workspace.parents[3])
        address = await ask(two, LISTEN)
        with engine() as api:
            (config,) = api.inspect_network(network)["IPAM"]["Config"]
        gateway = config["Gateway"]
        with socket.create_server((gateway, 0)) as service:
            addresses = [(address, 8000), service.getsockname()]
            other, host = await ask(one, CONNECT, addresses=addresses)
            assert (other, host) == ("timed out", "done")
            assert await ask(shut, CONNECT, addresses=addresses) == ["ENETUNREACH"] * 2
        assert await ask(two, CONNECT, addresses=[("127.0.0.1", 8000)]) == ["done"]
        data = two.workspace.parents[3]
    assert networks_of(data) == []


@requires("docker")
async def test_open_by_a_network_of_the_operator() -> None:
    """A configured network is used, and not removed."""
    with a_container() as (name, address, port):
        async with running_docker(network=name) as backend:
            sandbox = await backend.launch("one", SandboxSpec(network=Network.OPEN))
            assert networks_of(sandbox.workspace.parents[3]) == []
            assert await until_served(sandbox, address, port) == "done"


async def until_served(sandbox: Sandbox, address: str, port: int) -> str:
    """Wait until the service has started."""
    async with asyncio.timeout(30):
        while True:
            (verdict,) = await ask(sandbox, CONNECT, addresses=[(address, port)])
            if verdict != "ECONNREFUSED":
                return str(verdict)


@requires("docker")
async def test_networks_of_a_dead_broker_are_removed(tmp_path: Path) -> None:
    """A broker removes the network of a dead one."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        await dead_broker("docker", data, run, network="open")
        assert len(networks_of(data)) == 1
        async with running_docker(data_dir=data, run_dir=run):
            assert networks_of(data) == []


# What cannot be had


@requires("bubblewrap")
@requires("the kernels' environment")
async def test_a_jail_is_never_open() -> None:
    """A jail refuses an open network, which would include the host's loopback interface."""
    async with running_backend() as backend:
        with pytest.raises(LaunchError, match=r'"open".*default.*allowlist, none.*network\.md'):
            await backend.launch("one", SandboxSpec(network=Network.OPEN))


@requires("the kernels' environment")
async def test_a_plain_process_has_no_policy() -> None:
    """A plain process refuses an allow list, since nothing enforces it."""
    async with running_backend(bwrap="no-such-program", require_isolation=False) as backend:
        for network in (Network.ALLOWLIST, Network.OPEN):
            with pytest.raises(LaunchError, match="isolation process"):
                await backend.launch("one", SandboxSpec(network=network))


async def test_an_invalid_allow_list_is_refused(kind: str) -> None:
    """An invalid entry prevents the launch, and is named."""
    async with running(kind) as backend:
        with pytest.raises(LaunchError, match=r"template default: 'https://x\.org' is not a name"):
            await backend.launch("one", allowing("https://x.org"))


@requires("docker")
async def test_a_removed_network_is_created_again() -> None:
    """A network that was removed between two launches is created again."""
    async with running_docker() as backend:
        sandbox = await backend.launch("one", SandboxSpec(network=Network.OPEN))
        data = sandbox.workspace.parents[3]
        await backend.remove(sandbox)
        (network,) = networks_of(data)
        with engine() as api:
            api.remove_network(network)
        await backend.launch("two", SandboxSpec(network=Network.OPEN))
        assert networks_of(data) == [network]


@requires("docker")
async def test_a_missing_network_is_named() -> None:
    """A configured network that does not exist is named in the error."""
    async with running_docker(network="no-such-network") as backend:
        with pytest.raises(LaunchError, match="no-such-network"):
            await backend.launch("one", SandboxSpec(network=Network.OPEN))
