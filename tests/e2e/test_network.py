"""User programs with an allow list: a whole broker, real kernels, and servers of the test."""

from __future__ import annotations

import io
import json
import logging
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import kernelbroker
import pytest
from kernelbroker_server.app import Broker
from kernelbroker_server.config import ConfigError, Settings

from tests.backends.probes import BACKENDS
from tests.support.requires import IMAGE, KERNEL_PYTHON, requires
from tests.support.upstream import Names, Page, Upstream, serving_http

pytestmark = pytest.mark.sandbox

HOST = "files.example.org"
DEADLINE_S = 60.0


def wheel() -> bytes:
    """The smallest package that pip installs."""
    packed = io.BytesIO()
    info = "tiny_package-1.0.dist-info"
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("tiny_package.py", "answer = 42\n")
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "tiny_package.py,,\n")
    return packed.getvalue()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    with tempfile.TemporaryDirectory() as name, serving_http(Path(name), HOST) as upstream:
        directory = Path(name)
        directory.chmod(0o755)  # it is shared with the sandboxes, for the certificate
        (directory / "key.pem").unlink()
        file = "tiny_package-1.0-py3-none-any.whl"
        upstream.pages |= {
            "/table.csv": Page(b"a,b\n1,2\n3,4\n", headers={"Content-Type": "text/csv"}),
            "/away": Page(b"", 302, {"Location": "http://169.254.169.254/latest/meta-data/"}),
            "/simple/tiny-package/": Page(
                f'<!DOCTYPE html><a href="/files/{file}">{file}</a>'.encode(),
                headers={"Content-Type": "text/html"},
            ),
            f"/files/{file}": Page(wheel()),
        }
        yield upstream


@dataclass
class World:
    session: kernelbroker.Session
    log: Path

    async def run(self, code: str) -> str:
        """The output of a cell that must not fail."""
        result = await self.session.run(code, timeout=50)
        assert result.error is None, f"{result.error}\n{result.stdout}{result.stderr}"
        return str(result.stdout)

    def records(self, event: str) -> list[dict[str, Any]]:
        records = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [record for record in records if record["event"] == event]


def settings(kind: str, directory: Path, **options: Any) -> Settings:
    where = {"data_dir": directory / "data", "run_dir": directory / "run"}
    values = {
        "port": 0,
        "backend": kind,
        "local": {"kernel_python": KERNEL_PYTHON, "require_isolation": True, **where},
        "docker": {"image": IMAGE, "runtime": "runc", **where},
        "pool": {"min_size": 0, "max_size": 2, "acquire_timeout": DEADLINE_S},
        "audit_log": directory / "audit.log",
        **options,
    }
    return Settings(**values)


@asynccontextmanager
async def broker_of(kind: str, upstream: Upstream) -> AsyncIterator[World]:
    ca = "/data/shared/ca.pem"
    env = dict.fromkeys(("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"), ca)
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        sandbox = {
            "network": "allowlist",
            "allow": (HOST, "*.inside.example"),
            "shared_data": upstream.ca.parent,
            "env": {**env, "PIP_RETRIES": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
            "imports": (),
        }
        egress = {"private_networks": (ip_network("127.0.0.0/8"),)}
        names = Names({HOST: [[upstream.address]], "db.inside.example": [["10.0.0.5"]]})
        chosen = settings(kind, Path(name), sandbox=sandbox, egress=egress)
        broker = Broker(chosen, resolve=names)
        await broker.start()
        try:
            async with (
                kernelbroker.connect(broker.url, broker.token) as client,
                client.session("one") as session,
            ):
                yield World(session, Path(name, "audit.log"))
        finally:
            await broker.stop()


@pytest.fixture(params=BACKENDS)
async def world(request: pytest.FixtureRequest, upstream: Upstream) -> AsyncIterator[World]:
    async with broker_of(str(request.param), upstream) as world:
        yield world


GET = """
import subprocess, sys, urllib.request, urllib.error
import pandas, requests

def attempt(call, *args):
    try:
        return call(*args)
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def pip(*args):
    done = subprocess.run([sys.executable, "-m", "pip", *args], capture_output=True, text=True)
    return f"{done.returncode} {done.stdout}{done.stderr}"
"""
HTTP = f"""
for scheme in ("http", "https"):
    url = f"{{scheme}}://{HOST}/table.csv"
    print(len(urllib.request.urlopen(url).read()), len(requests.get(url).text),
          pandas.read_csv(url).sum().tolist())
with requests.Session() as session:
    print([session.get(url).status_code for _ in range(3)])
print(attempt(requests.get, "https://pypi.org/simple"))
print(requests.get("http://pypi.org/simple").text)
print(requests.get("http://{HOST}/away").text)
print(attempt(urllib.request.urlopen, "http://169.254.169.254/latest/"))
print(requests.get("http://db.inside.example/").text)
"""


async def test_libraries_use_the_proxy(world: World) -> None:
    """Common libraries reach allowed hosts, and report why others are refused."""
    await world.run(GET)
    lines = (await world.run(HTTP)).splitlines()
    assert lines[:2] == ["12 12 [4, 6]"] * 2
    assert lines[2] == "[200, 200, 200]"
    advice = "kernelbroker: pypi.org is not in `allow` of the template default: ask your operator"
    assert "ProxyError" in lines[3]
    assert f"403 {advice}" in lines[3]
    assert lines[4].startswith(advice)
    refused = [line for line in lines[5:] if line]
    assert len(refused) == 3
    assert "IP addresses are not allowed" in refused[0]  # where the redirect led
    assert "HTTPError: HTTP Error 403: kernelbroker: IP addresses are not allowed" in refused[1]
    assert "egress.private_networks" in refused[2]
    (lease,) = world.records("session.lease")
    assert lease["session"] == "one"
    requests = world.records("network.request")
    assert {record["sandbox"] for record in requests} == {lease["sandbox"]}
    hosts = {(record["host"], record["outcome"]) for record in requests}
    assert hosts == {
        (HOST, "allowed"),
        ("pypi.org", "refused"),
        ("169.254.169.254", "refused"),
        ("db.inside.example", "refused"),
    }


async def test_pip_uses_the_proxy(world: World) -> None:
    """Packages are installed from an allowed index; for another one pip shows the advice."""
    await world.run(GET)
    index = f"https://{HOST}/simple"
    assert (await world.run(f"""
print(pip("download", "--index-url", "{index}", "--dest", "/tmp/got", "tiny-package"))
""")).startswith("0 ")  # fmt: skip
    assert (await world.run(f"""
print(pip("install", "--index-url", "{index}", "--target", "/data/lib", "tiny-package"))
""")).startswith("0 ")  # fmt: skip
    source = "sys.path.insert(0, '/data/lib'); import tiny_package; print(tiny_package.answer)"
    assert await world.run(source) == "42\n"
    other = await world.run("""
print(pip("download", "--index-url", "https://pypi.org/simple", "--dest", "/tmp/got", "six"))""")
    assert other.startswith("1 ")
    assert "pypi.org is not in `allow` of the template default" in other


@pytest.mark.parametrize("kind", BACKENDS)
async def test_an_upstream_without_a_network(kind: str, upstream: Upstream) -> None:
    """Without a network code reaches the listed server, whose key it never sees, and nothing else."""
    upstream.headers.clear()
    upstream.pages["/api/v1/echo"] = Page(b"said")
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        server = {
            "url": f"http://{upstream.address}/api",
            "token": "key-of-the-broker",
            "header": "x-api-key",
            "paths": ["/v1/*"],
        }
        chosen = settings(
            kind,
            Path(name),
            sandbox={"upstreams": ["model"], "imports": ()},
            upstreams={"model": server},
        )
        broker = Broker(chosen)
        await broker.start()
        try:
            async with (
                kernelbroker.connect(broker.url, broker.token) as client,
                client.session("one") as session,
            ):
                world = World(session, Path(name, "audit.log"))
                said = await world.run(f"""
import os, requests, urllib.request
print(requests.get("http://model.internal/v1/echo", headers={{"x-api-key": "mine"}}).text)
direct = urllib.request.ProxyHandler({{}})
print(urllib.request.build_opener(direct).open(
    "http://127.0.0.1:3128/model.internal/v1/echo").read())
print(requests.get("http://model.internal/other").status_code)
print(requests.get("http://{HOST}/table.csv").status_code)
print("key-of-the-broker" in str(os.environ) + open("/proc/self/mountinfo").read())
""")
        finally:
            await broker.stop()
        assert said.splitlines() == ["said", "b'said'", "403", "403", "False"]
        assert [each["x-api-key"] for each in upstream.headers] == ["key-of-the-broker"] * 2
        requests = world.records("network.request")
        outcomes = [(each["host"], each.get("upstream"), each["outcome"]) for each in requests]
        assert outcomes == [
            ("model.internal", "model", "allowed"),
            ("model.internal", "model", "allowed"),
            ("model.internal", None, "refused"),
            (HOST, None, "refused"),
        ]


async def test_an_upstream_without_isolation(tmp_path: Path) -> None:
    """A plain process could use the network of the host, so such a template stops the start."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        path = Path(name)
        plain = {"kernel_python": Path(sys.executable), "bubblewrap": "no-such-program"}
        plain |= {"data_dir": path, "run_dir": path}
        listed = settings(
            "local",
            path,
            sandbox={"upstreams": ["model"]},
            upstreams={"model": {"url": "http://127.0.0.1:1"}},
        )
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match="upstreams"):
            patch.setenv("PATH", "/nowhere")
            await Broker(listed.model_copy(update={"local": type(listed.local)(**plain)})).start()


@requires("bubblewrap")
async def test_an_unsupported_network_stops_the_start(tmp_path: Path) -> None:
    """A broker does not start with an unsupported network, and names the template."""
    open_ = settings("local", tmp_path, templates={"wild": {"network": "open"}})
    with pytest.raises(ConfigError, match=r'"open" of the template wild.*docs/network\.md'):
        await Broker(open_).start()
    with tempfile.TemporaryDirectory(prefix="kb-") as name:  # short: plain processes need it
        path = Path(name)
        plain = {"kernel_python": Path(sys.executable), "bubblewrap": "no-such-program"}
        plain |= {"data_dir": path, "run_dir": path}
        listed = settings("local", path, sandbox={"network": "allowlist"})
        with pytest.MonkeyPatch.context() as patch, pytest.raises(ConfigError, match="allowlist"):
            patch.setenv("PATH", "/nowhere")
            await Broker(listed.model_copy(update={"local": type(listed.local)(**plain)})).start()


async def test_an_audit_log_that_cannot_be_written(tmp_path: Path) -> None:
    """A broker does not start without its configured audit log."""
    chosen = settings("local", tmp_path, audit_log=tmp_path / "none" / "log")
    with pytest.raises(ConfigError, match=r"audit_log: .*none/log: No such file"):
        await Broker(chosen).start()


@pytest.mark.parametrize("kind", BACKENDS[1:])
async def test_an_open_network_is_logged(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An open network is logged with the name of its template."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        templates = {"wild": {"network": "open", "pool": {"min_size": 0}}}
        broker = Broker(settings(kind, Path(name), templates=templates))
        with caplog.at_level(logging.WARNING):
            await broker.start()
        await broker.stop()
    (line,) = [message for message in caplog.messages if "OPEN NETWORK" in message]
    assert "template wild" in line


async def test_the_network_can_be_taken_away(world: World) -> None:
    """A session that gives its network up has none, also in its next sandbox, and it does not come back."""
    await world.run(GET)
    get = f"print(attempt(urllib.request.urlopen, 'http://{HOST}/table.csv'))"
    assert "HTTPResponse" in await world.run(get)
    await world.session.update(limits=kernelbroker.SandboxLimits(network="none"))
    assert (await world.run(get)).startswith(
        ("RemoteDisconnected", "URLError", "ConnectionResetError")
    )
    with pytest.raises(kernelbroker.BadRequest, match="stays so"):
        await world.session.update(limits=kernelbroker.SandboxLimits(memory=2**40))
    before = len(world.records("network.request"))
    await world.session.restart()
    await world.run(GET)
    assert (await world.run(get)).startswith(
        ("RemoteDisconnected", "URLError", "ConnectionResetError")
    )
    assert len(world.records("network.request")) == before
