"""One broker with jails and containers, each kind for its templates."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import kernelbroker
import pytest

from tests.backends.probes import containers_of
from tests.e2e.support import BrokerProcess, call, whole_system
from tests.support.requires import gvisor_runtime, requires

pytestmark = [*whole_system, requires("docker")]

TEMPLATES = {
    "default": {},
    "box": {"backend": "docker", "pool": {"min_size": 0}, "memory": "600MiB"},
    **(
        {"gvisor": {"backend": "docker", "runtime": gvisor_runtime(), "pool": {"min_size": 0}}}
        if gvisor_runtime()
        else {}
    ),
    "small": {"profile": "strict", "timeout": 2, "memory": "600MiB", "pool": {"min_size": 0}},
}


def both_backends(directory: Path, **settings: object) -> BrokerProcess:
    """A broker whose default template is local, and whose template `box` is on docker."""
    return BrokerProcess(
        directory,
        TEMPLATES=json.dumps(TEMPLATES),
        DOCKER__DATA_DIR=directory / "containers",
        DOCKER__RUN_DIR=directory / "run",
        **settings,
    )


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerProcess]:
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        with both_backends(Path(directory)).running() as broker:
            yield broker
        assert containers_of(Path(directory) / "containers") == []


@pytest.fixture
async def client(broker: BrokerProcess) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(broker.url, broker.token) as client:
        yield client


async def test_each_template_has_the_sandboxes_of_its_backend(
    broker: BrokerProcess, client: kernelbroker.Broker
) -> None:
    """A session runs in a jail or in a container, as its template says, and says which."""
    async with client.session() as jailed, client.session(template="box") as boxed:
        assert jailed.info is not None and jailed.info.isolation == "bubblewrap"
        assert boxed.info is not None and boxed.info.isolation == "container"
        where = "import os; in_container = os.path.exists('/.dockerenv')"
        for session, expected in ((jailed, False), (boxed, True)):
            result = await session.run(where, result_var="in_container")
            assert result.return_value is expected, result
    health = (await call(broker, "GET", "/health"))[1]
    assert health["isolation"] == "bubblewrap"
    isolations = {name: each["isolation"] for name, each in health["backends"].items()}
    assert isolations.pop("docker-runsc", "gvisor") == "gvisor"  # there after another test used it
    assert isolations == {"local": "bubblewrap", "docker": "container"}


@requires("gvisor")
async def test_a_template_has_a_runtime_of_its_own(client: kernelbroker.Broker) -> None:
    """Beside jails and plain containers, one template runs in gVisor, whose kernel is not the host's."""
    seen = {}
    for template in ("box", "gvisor"):
        async with client.session(template=template) as session:
            assert session.info is not None
            kernel = await session.run(
                "import os; kernel = os.uname().release", result_var="kernel"
            )
            seen[template] = (session.info.isolation, kernel.return_value == os.uname().release)
    assert seen == {"box": ("container", True), "gvisor": ("gvisor", False)}


async def test_a_workspace_goes_from_one_backend_to_the_other(
    client: kernelbroker.Broker,
) -> None:
    """A workspace by name is used in turn in jails and in containers, which change its files."""
    write = """
import os
os.makedirs("deep/er", exist_ok=True)
if not os.path.islink("a link"):
    os.symlink("/etc/passwd", "a link")
for path in ("top.txt", "deep/er/file.txt"):
    with open(path, "a") as file:
        file.write(NAME + "\\n")
"""
    for number, template in enumerate(("default", "box", "default", "box")):
        async with client.session(template=template, workspace="shared-by-both") as session:
            result = await session.run(f"NAME = '{template} {number}'\n{write}")
            assert result.success, result
            text = "text = open('top.txt').read() + open('deep/er/file.txt').read()"
            read = await session.run(text, result_var="text")
            assert read.return_value.splitlines().count(f"{template} {number}") == 2
            assert len(read.return_value.splitlines()) == 2 * (number + 1)


async def test_the_limits_of_a_profile(client: kernelbroker.Broker) -> None:
    """The profile limits the size of a file; a template's own timeout replaces that of the profile."""
    async with client.session(template="small") as session:
        big = await session.run("open('big', 'wb').write(bytes(11 << 20))", timeout=2)
        assert not big.success
        assert "File too large" in str(big.error)
        fits = await session.run("n = open('fits', 'wb').write(bytes(9 << 20))", result_var="n")
        assert fits.return_value == 9 << 20
        with pytest.raises(kernelbroker.TooLarge):
            await session.files.write("uploaded", bytes(11 << 20))
        with pytest.raises(kernelbroker.BadRequest, match="timeout is at most 2 s"):
            await session.run("1", timeout=3)
        late = await session.run("import time; time.sleep(30)")
        assert late.error_detail is not None
        assert late.error_detail.cause == "timeout"


@pytest.mark.long
async def test_sandboxes_of_both_backends_outlive_the_broker() -> None:
    """The next broker goes on with sessions in jails and in containers, with variables and files."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        broker = both_backends(Path(directory), SHUTDOWN="adopt")
        try:
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                for template in ("default", "box"):
                    session = client.session(template, template=template, keep=True)
                    result = await session.run("x = 41; open('f', 'w').write('kept')")
                    assert result.success, result
            broker.kill()
            broker.start()
            async with kernelbroker.connect(broker.url, broker.token) as client:
                for template in ("default", "box"):
                    async with client.session(template, template=template) as session:
                        code = "x += 1; y = (x, open('f').read())"
                        result = await session.run(code, result_var="y")
                        assert result.return_value == [42, "kept"]
                        assert not result.kernel_restarted
            broker_ids = broker.broker_ids()
            assert await asyncio.to_thread(broker.stop, signal.SIGINT) == 0
            assert broker.remains(broker_ids) == []
            assert broker.complaints() == [], broker.log.read_text(errors="replace")
        finally:
            broker.kill()
        assert containers_of(Path(directory) / "containers") == []
