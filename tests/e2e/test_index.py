"""Packages from an index of an operator's own, through the allow list's proxy.

A network of the test's own has a server with PyPI's two kinds of pages, on two hosts, with a certificate
that nobody else trusts; the broker lives there too, and pip finds its way as it would to PyPI.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kernelbroker
import pytest
from kernelbroker import Conflict

from tests.backends.test_contract import BACKENDS
from tests.e2e.support import BrokerProcess, until
from tests.support.namespace import own_network, with_names
from tests.support.requires import IMAGE
from tests.support.upstream import Page, Upstream, serving_http
from tests.support.wheels import make_wheel

pytestmark = pytest.mark.sandbox

ADDRESS = "10.77.0.1"
INDEX, FILES, AWAY = "pypi.test", "files.test", "away.test"


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with (
        own_network(f"{ADDRESS}/24"),
        tempfile.TemporaryDirectory() as name,
        serving_http(Path(name), INDEX, FILES, AWAY, address=ADDRESS) as upstream,
    ):
        directory = Path(name)
        directory.chmod(0o755)  # it is shared with the sandboxes, for the certificate
        (directory / "key.pem").unlink()
        yield upstream


def publish(
    upstream: Upstream,
    wheel: Path,
    *,
    host: str = FILES,
    sha256: str | None = None,
    gate: threading.Event | None = None,
) -> None:
    """Put a wheel on the index, as PEP 503 has it."""
    name, data = wheel.name.partition("-")[0], wheel.read_bytes()
    url = f"https://{host}/{wheel.name}#sha256={sha256 or hashlib.sha256(data).hexdigest()}"
    page = f'<!DOCTYPE html><html><body><a href="{url}">{wheel.name}</a></body></html>'
    upstream.pages[f"/simple/{name}/"] = Page(page.encode(), headers={"Content-Type": "text/html"})
    upstream.pages[f"/{wheel.name}"] = Page(data, gate=gate)


@dataclass
class World:
    broker: BrokerProcess
    upstream: Upstream
    audit_log: Path
    gate: threading.Event

    def records(self, event: str) -> list[dict[str, Any]]:
        records = map(json.loads, self.audit_log.read_text().splitlines())
        return [record for record in records if record["event"] == event]

    def paths(self, host: str) -> list[str]:
        """What was asked of a host over https."""
        return [path for _, _, path, at, _ in self.upstream.seen if at == host]


@pytest.fixture(scope="module", params=BACKENDS)
def world(request: pytest.FixtureRequest, upstream: Upstream) -> Iterator[World]:
    gate = threading.Event()
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        directory = Path(name)
        publish(upstream, make_wheel(directory, "helper", "1.0"))
        publish(upstream, make_wheel(directory, "needy", "1.0", requires=("helper>=1",)))
        publish(upstream, make_wheel(directory, "elsewhere", "1.0"), host=AWAY)
        publish(upstream, make_wheel(directory, "forged", "1.0"), sha256="0" * 64)
        publish(upstream, make_wheel(directory, "slow", "1.0"), gate=gate)
        where = {"DATA_DIR": directory / "data", "RUN_DIR": directory / "run", "IMAGE": IMAGE}
        broker = BrokerProcess(
            directory,
            with_names(directory / "hosts", dict.fromkeys((INDEX, FILES, AWAY), ADDRESS)),
            BACKEND=request.param,
            **{f"DOCKER__{name}": value for name, value in where.items()},
            AUDIT_LOG=directory / "audit.log",
            PACKAGES__INDEX_URL=f"https://{INDEX}/simple/",
            EGRESS__PRIVATE_NETWORKS=json.dumps([f"{ADDRESS}/32"]),
            SANDBOX__NETWORK="allowlist",
            SANDBOX__ALLOW=json.dumps([INDEX, FILES]),
            SANDBOX__SHARED_DATA=upstream.ca.parent,
            SANDBOX__ENV=json.dumps({"PIP_CERT": "/data/shared/ca.pem"}),
            TEMPLATES__closed=json.dumps({"network": "none", "pool": {"min_size": 0}}),
            TEMPLATES__stray=json.dumps({"allow": [FILES], "pool": {"min_size": 0}}),
        ).start()
        try:
            yield World(broker, upstream, directory / "audit.log", gate)
            broker.stop_in_order()
        finally:
            gate.set()
            broker.kill()


@pytest.fixture
async def client(world: World) -> AsyncIterator[kernelbroker.Broker]:
    async with kernelbroker.connect(world.broker.url, world.broker.token) as client:
        yield client


@pytest.fixture
async def session(client: kernelbroker.Broker) -> AsyncIterator[kernelbroker.Session]:
    async with client.session() as session:
        yield session


async def test_install_from_an_index(world: World, session: kernelbroker.Session) -> None:
    """A package comes from the index with its dependencies; the audit log has each host."""
    seen: list[str] = []
    result = await session.install("needy", on_stdout=seen.append)
    assert result.success, result.stderr
    assert "".join(seen) == result.stdout
    assert "Successfully installed helper-1.0 needy-1.0" in result.stdout
    assert (await session.run("import needy, helper; print(helper.VERSION)")).stdout == "1.0\n"
    assert {"/simple/needy/", "/simple/helper/"} <= set(world.paths(INDEX))
    assert "/needy-1.0-py3-none-any.whl" in world.paths(FILES)
    sandboxes = {
        record["sandbox"]
        for record in world.records("session.lease")
        if record["session"] == session.session_id
    }
    mine = [each for each in world.records("network.request") if each["sandbox"] in sandboxes]
    assert {(each["host"], each["port"], each["outcome"]) for each in mine} == {
        (INDEX, 443, "allowed"),
        (FILES, 443, "allowed"),
    }
    assert {each["address"] for each in mine} == {ADDRESS}


async def test_pip_in_a_cell(session: kernelbroker.Session) -> None:
    """The certificates that the operator named are for the pip of user code as well."""
    result = await session.run(
        "import subprocess, sys; print(subprocess.run([sys.executable, '-m', 'pip', 'download', '--dest',"
        f"'/tmp/got', '--index-url', 'https://{INDEX}/simple/', 'helper']).returncode)"
    )
    assert result.stdout.endswith("0\n"), result.stdout + result.stderr


async def test_a_host_that_is_not_listed(
    world: World, client: kernelbroker.Broker, session: kernelbroker.Session
) -> None:
    """A file, or an index, on another host than those of the list fails with the proxy's advice."""
    refusal = f"kernelbroker: {AWAY} is not in `allow` of the template default: ask your operator"
    result = await session.install("elsewhere")
    assert not result.success
    assert result.error is not None and result.error.startswith("InstallFailed: ")
    assert refusal in result.error and refusal in result.stderr
    assert world.paths(AWAY) == []
    async with client.session(template="stray") as astray:
        result = await astray.install("needy")
    assert result.error == (
        "InstallFailed: No matching distribution found for needy; "
        f"kernelbroker: {INDEX} is not in `allow` of the template stray: ask your operator to add it"
    )
    refused = {
        (each["host"], each["reason"], each["template"])
        for each in world.records("network.request")
        if each["outcome"] == "refused"
    }
    assert refused == {(AWAY, "not_listed", "default"), (INDEX, "not_listed", "stray")}


async def test_an_index_needs_a_network(world: World, client: kernelbroker.Broker) -> None:
    """A template without a network refuses the index with the reason."""
    async with client.session(template="closed") as session:
        with pytest.raises(Conflict, match=r"template closed have no network, .*packages\.wheels"):
            await session.install("needy")


async def test_another_file_than_the_index_says(session: kernelbroker.Session) -> None:
    """A file whose hash is not the index' own is not installed."""
    result = await session.install("forged")
    assert not result.success
    assert result.error is not None and "DO NOT MATCH THE HASHES" in result.error
    assert "Expected sha256 0000" in result.stderr
    assert not (await session.run("import forged")).success


LEFT = """
import os
def arguments(pid):
    try:
        return open(f"/proc/{pid}/cmdline").read()
    except OSError:
        return ""
print([pid for pid in os.listdir("/proc") if pid.isdigit() and "pip_runner" in arguments(pid)],
      [name for name in os.listdir("/data/.packages") if name.startswith("tmp-")])
"""


async def test_an_interrupted_installation_ends(
    world: World, session: kernelbroker.Session
) -> None:
    """An interrupted installation ends with pip and its partial files; the next one works."""
    asked = len(world.paths(FILES))
    installing = asyncio.create_task(session.install("slow"))
    await until(lambda: len(world.paths(FILES)) > asked)
    await session.interrupt()
    result = await installing
    assert result.error_detail is not None and result.error_detail.cause == "interrupted"
    assert not result.kernel_restarted
    assert (await session.run(LEFT)).stdout == "[] []\n"
    assert (await session.install("helper")).success


async def test_an_installation_ends_at_its_timeout(session: kernelbroker.Session) -> None:
    """An installation ends at its timeout; the state stays."""
    await session.run("kept = 1")
    result = await session.install("slow", timeout=3)
    assert result.error_detail is not None and result.error_detail.cause == "timeout"
    assert (await session.run("print(kept)")).stdout == "1\n"
    assert (await session.run(LEFT)).stdout == "[] []\n"


async def test_installations_run_one_after_the_other(session: kernelbroker.Session) -> None:
    """Installations of one session run one after the other."""
    first, second = await asyncio.gather(session.install("needy"), session.install("helper"))
    assert first.success and second.success, (first.error, second.error)
    assert (await session.run("import needy, helper")).success
