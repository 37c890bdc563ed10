"""A whole broker whose sandboxes are Pods of a real cluster, with only the rights that its page names."""

from __future__ import annotations

import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import pytest
from kernelbroker import events

from tests.backends.probes import kubectl
from tests.e2e.clusters import Namespace, new_namespace
from tests.e2e.support import (
    BrokerProcess,
    Measured,
    backend_settings,
    call,
    free_port,
    until,
)
from tests.support.requires import requires
from tests.support.results import cause_of

pytestmark = [pytest.mark.sandbox, requires("cluster")]

MIB = 1024**2
POOL = 5
SETTINGS = {
    "POOL__MAX_SIZE": POOL,
    "POOL__ACQUIRE_TIMEOUT": 60,
    "SANDBOX__MEMORY": "300MiB",
    "SESSIONS__DEFAULT_TIMEOUT": 60,
}
LOOP = "import time\nprint('runs', flush=True)\nfor _ in range(3000): time.sleep(0.02)"


@pytest.fixture(scope="module")
def namespace() -> Iterator[Namespace]:
    with new_namespace() as namespace:
        yield namespace


@pytest.fixture(scope="module")
def broker(namespace: Namespace) -> Iterator[BrokerProcess]:
    settings = backend_settings("kubernetes") | SETTINGS | {"POOL__MIN_SIZE": 2}
    settings["KUBERNETES__KUBECONFIG"] = namespace.kubeconfig
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = BrokerProcess(Path(directory), **settings)
        try:
            broker.start()
            yield broker
            broker_ids = broker.broker_ids()
            assert broker.stop() == 0
            assert broker.remains(broker_ids) == []
            assert namespace.pods("-o", "name") == []
        finally:
            broker.kill()


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(broker.url, broker.token) as client:
        yield client


async def own_pod(session: kernelbroker.Session, namespace: Namespace) -> str:
    """The name of the session's Pod, by its address."""
    code = "import socket; address = socket.gethostbyname('sandbox')"
    address = (await session.run(code, result_var="address")).return_value
    names = "jsonpath={range .items[*]}{.status.podIP}={.metadata.name} {end}"
    pods = dict(each.split("=") for each in namespace.pods("-o", names))
    return pods[str(address)]


async def pool(broker: BrokerProcess) -> dict[str, int]:
    return dict((await call(broker, "GET", "/api/v1/pool/status"))[1])


async def warm(broker: BrokerProcess, number: int) -> None:
    async def enough() -> bool:
        return (await pool(broker))["idle_containers"] >= number

    await until(enough)


async def test_a_session_in_a_pod(broker: BrokerProcess, client: kernelbroker.Broker) -> None:
    """Cells, tables, files, out of memory and restarts are as they are in a jail."""
    health = (await call(broker, "GET", "/health"))[1]
    assert health["isolation"] == "container"
    described = health["backend"]
    assert described["backend"] == "kubernetes"
    assert described["api"] == "answers"
    # The cluster of the tests enforces no policies. The address of its API is the door here, on loopback.
    told = str(described["network_policies"])
    assert told.startswith("not enforced: sandboxes reach other sandboxes"), told
    assert "the API" not in told, told

    async with client.session() as session:
        await session.files.write("in.txt", "from outside")
        source = (
            "import pandas as pd; df = pd.DataFrame({'a': [1, 2]}); df.to_csv('t.csv')\n"
            "print(open('in.txt').read())"
        )
        table = await session.run(source, result_var="df")
        assert table.stdout == "from outside\n"
        assert table.dataframe is not None
        assert [file.path for file in table.files] == ["t.csv"]
        assert await session.files.read("t.csv") == b",a\n0,1\n1,2\n"
        hog = await session.run("held = bytearray(1 << 30)")
        assert cause_of(hog) == "out_of_memory"
        listing = await session.run("import os; print(sorted(os.listdir('/data')))")
        assert listing.stdout == "['in.txt', 't.csv']\n"
        await session.restart()
        assert (await session.run("print(open('in.txt').read())")).stdout == "from outside\n"


@pytest.mark.parametrize("how", ["deleted", pytest.param("evicted", marks=pytest.mark.long)])
async def test_the_pod_goes_in_the_middle_of_a_cell(
    client: kernelbroker.Broker, namespace: Namespace, how: str
) -> None:
    """The cell ends with a cause that says what has happened, and the session goes on in another Pod."""
    async with client.session() as session:
        name = await own_pod(session, namespace)
        result = None
        async for event in session.stream(LOOP):
            if isinstance(event, events.Stdout) and how == "deleted":
                kubectl("-n", namespace.name, "delete", "pod", name, "--wait=false")
            elif isinstance(event, events.Stdout):
                eviction = {
                    "apiVersion": "policy/v1",
                    "kind": "Eviction",
                    "metadata": {"name": name, "namespace": namespace.name},
                }
                with tempfile.NamedTemporaryFile("w") as file:
                    json.dump(eviction, file)
                    file.flush()
                    path = f"/api/v1/namespaces/{namespace.name}/pods/{name}/eviction"
                    kubectl("create", "--raw", path, "-f", file.name)
            if isinstance(event, events.Result):
                result = event
        assert cause_of(result) == "sandbox_lost"
        assert how in str(result), result
        assert (await session.run("print(1)")).stdout == "1\n"
        assert await own_pod(session, namespace) != name


async def test_the_api_is_away(
    broker: BrokerProcess, client: kernelbroker.Broker, namespace: Namespace
) -> None:
    """Running sessions and warm Pods are used further; what needs a new Pod waits until the API is back."""
    await warm(broker, 1)
    async with client.session() as running:
        assert (await running.run("x = 1")).success
        await warm(broker, 1)
        namespace.door.shut()
        try:

            async def away() -> bool:
                described = (await call(broker, "GET", "/health"))[1]["backend"]
                return bool(described["api"] == "away")

            await until(away)
            assert (await running.run("print(x)")).stdout == "1\n"
            async with client.session() as other:  # it has a Pod that was warm
                assert (await other.run("print(2)")).stdout == "2\n"
        finally:
            namespace.door.open()
        opening = [client.session() for _ in range(POOL - 1)]  # more than are warm
        await asyncio.gather(*(session.open() for session in opening))
        for session in opening:
            assert (await session.run("print(3)")).stdout == "3\n"
            await session.close()
        assert (await running.run("print(x)")).stdout == "1\n"

    async def none_left() -> bool:
        return (
            len(namespace.pods("-o", "name")) <= 2 and (await pool(broker))["total_containers"] <= 2
        )

    await until(none_left)


async def test_a_warm_lease_is_fast(broker: BrokerProcess, measured: Measured) -> None:
    """A session that finds a warm Pod opens without a call to the API server."""
    seconds = []
    for _ in range(8):
        await warm(broker, 1)
        began = time.monotonic()
        status, opened = await call(broker, "POST", "/api/v1/sessions", {})
        seconds.append(time.monotonic() - began)
        assert status in (200, 201)
        await call(broker, "DELETE", f"/api/v1/sessions/{opened['session_id']}")
    measured("warm lease of a Pod, p50 and worst", statistics.median(seconds), max(seconds))
    assert statistics.median(seconds) < 0.5  # a new Pod takes seconds


async def test_a_killed_broker_is_followed_by_another() -> None:
    """After kill -9 and a start, variables and files are there, and the Pods are the same."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        settings = backend_settings("kubernetes") | SETTINGS
        broker = BrokerProcess(
            Path(directory), TOKEN="a token", PORT=free_port(), POOL__MIN_SIZE=1, **settings
        )
        with broker.running():
            async with kernelbroker.connect(broker.url, broker.token) as client:
                session = client.session("mine")
                await session.open()
                assert (await session.run("x = 42; open('note', 'w').write('kept')")).success
                await warm(broker, 1)
                before = broker.sandboxes()["directories"]
                broker.kill()
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                session = client.session("mine")
                result = await session.run("print(x, open('note').read())")
                assert result.stdout == "42 kept\n"
                assert set(before) <= set(broker.sandboxes()["directories"])
                await session.restart()
                assert (await session.run("print(open('note').read())")).stdout == "kept\n"
                await session.close()
