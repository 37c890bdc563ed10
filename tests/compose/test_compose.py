"""compose.yaml on a real engine: started, used through the published port, and stopped."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import kernelbroker
import pytest
from kernelbroker_server.documentation.surface import SITE

from tests.backends.probes import containers_of
from tests.compose.support import (
    COMPOSE,
    COMPOSE_2,
    compose_argv,
    containers,
    engine_socket,
    healthy,
    is_ready,
    run,
    until,
    use,
)
from tests.e2e.support import STORE
from tests.support.requires import IMAGE, engine, requires
from tests.support.wheels import make_wheel

pytestmark = [*containers, requires("compose")]

TOKEN = "a token of the tests"


def _changed(runtime: str) -> dict[str, Any]:
    """What is added to the file: tests do not wait for a health check's turn, and name the runtime."""
    impatient = {"healthcheck": {"interval": "1s"}}
    named = {"environment": {"KERNELBROKER_DOCKER__RUNTIME": runtime}}
    return {"broker": impatient | named, "engine-filter": impatient}


class Deployment:
    """A deployment of compose.yaml, with its own project name and directory."""

    def __init__(
        self, directory: Path, broker_image: str, program: Sequence[str], runtime: str
    ) -> None:
        self.directory = directory
        self._program = program
        self.project = directory.name.replace("_", "-").lower()
        (directory / "token").write_text(f"{TOKEN}\n")
        (directory / "token").chmod(0o600)
        self._files = (COMPOSE / "compose.yaml", directory / "impatient.yaml")
        self._files[1].write_text(json.dumps({"services": _changed(runtime)}))
        self._environ = {
            "KERNELBROKER_DIR": str(directory),
            "KERNELBROKER_PUBLISH": "127.0.0.1:0",
            "KERNELBROKER_TOKEN_FILE": str(directory / "token"),
            "KERNELBROKER_IMAGE": IMAGE,
            "KERNELBROKER_BROKER_IMAGE": broker_image,
            "DOCKER_SOCKET": str(engine_socket()),
        }

    def compose(self, *arguments: str) -> str:
        files = [word for file in self._files for word in ("--file", file)]
        argv = [*self._program, "--project-name", self.project, *files, *arguments]
        return run(*argv, **self._environ)

    def container(self, service: str) -> dict[str, Any]:
        with engine() as api:
            (found,) = api.containers(all=True, filters={"label": self._labels(service)})
            described: dict[str, Any] = api.inspect_container(found["Id"])
        return described

    @property
    def url(self) -> str:
        (port,) = self.container("broker")["NetworkSettings"]["Ports"]["8720/tcp"]
        return f"http://{port['HostIp']}:{port['HostPort']}"

    def remains(self) -> list[str]:
        label = {"label": self._labels()}
        with engine() as api:
            found = api.containers(all=True, filters=label) + api.networks(filters=label)
            found += api.volumes(filters=label)["Volumes"] or []
        files = [*(self.directory / "data").iterdir(), *(self.directory / "run").iterdir()]
        files = [path for path in files if path.name not in STORE]
        return [*map(str, found + files), *containers_of(self.directory / "data")]

    def _labels(self, service: str = "") -> list[str]:
        label = "com.docker.compose"
        labels = [f"{label}.project={self.project}"]
        return [*labels, f"{label}.service={service}"] if service else labels


@contextlib.contextmanager
def deployed(broker_image: str, program: Sequence[str], runtime: str) -> Iterator[Deployment]:
    """A deployment that is up and healthy in the block, and of which nothing is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        deployment = Deployment(Path(directory), broker_image, program, runtime)
        try:
            deployment.compose("up", "--detach")
            until(
                lambda: healthy(deployment.container("broker")["Id"]), "the broker's health check"
            )
            # A broker whose very first launches fail ends, and no test may be the cause of that.
            until(lambda: is_ready(deployment.url), "the first sandbox")
            yield deployment
        finally:
            deployment.compose("kill", "-s", "SIGINT", "broker")  # docs/deployment.md
            deployment.compose("stop")
            logs = deployment.compose("logs")
            deployment.compose("down", "--volumes")
        assert deployment.remains() == [], logs


@pytest.fixture(scope="module")
def deployment(broker_image: str) -> Iterator[Deployment]:
    with deployed(broker_image, compose_argv(), "runc") as deployment:
        yield deployment


@pytest.mark.long
@requires("compose 2")
@requires("gvisor")
async def test_compose_2_with_gvisor(broker_image: str) -> None:
    """Version 2 starts and stops the file; if the engine has gVisor, cells run in it."""
    with deployed(broker_image, COMPOSE_2, "auto") as deployment:
        assert "127.0.0.1" in deployment.compose("config")
        await use(deployment.url, TOKEN)
        assert "runsc over unix sockets" not in deployment.compose("logs"), "it was given up"


def test_the_file_is_valid_without_variables() -> None:
    """compose.yaml needs no variable, and publishes to this machine only."""
    out = run(*compose_argv(), "--file", COMPOSE / "compose.yaml", "config")
    assert "127.0.0.1:8720:8720" in out or "host_ip: 127.0.0.1" in out


async def test_a_client_of_the_published_port(deployment: Deployment) -> None:
    """A client of the published port has sessions and the shared data."""
    (deployment.directory / "shared/colours.csv").write_text("red,green\n")
    await use(deployment.url, TOKEN)
    async with kernelbroker.connect(deployment.url, TOKEN) as broker:
        shared = await broker.run("print(open('/data/shared/colours.csv').read())")
        assert shared.stdout == "red,green\n\n"


def test_the_documentation_is_in_the_image(deployment: Deployment) -> None:
    """The broker's image serves the site, which was built from the sources of the image."""
    with urlopen(f"{deployment.url}/docs/", timeout=60) as answer:
        assert answer.read() == (SITE / "index.html").read_bytes()


async def test_wheels_are_installed_offline(deployment: Deployment) -> None:
    """The operator's wheels are installed without a network."""
    make_wheel(deployment.directory / "wheels", "ourown", "1.0")
    async with (
        kernelbroker.connect(deployment.url, TOKEN) as broker,
        broker.session() as session,
    ):
        installed = await session.install("ourown")
        assert installed.success, installed.error
        assert (await session.run("import ourown; print(ourown.VERSION)")).stdout == "1.0\n"


def test_the_containers_have_no_privileges(deployment: Deployment) -> None:
    """The containers cannot write to their root, gain rights or grow; the broker has no engine socket."""
    broker, engine_filter = deployment.container("broker"), deployment.container("engine-filter")
    for container in (broker, engine_filter):
        host = container["HostConfig"]
        assert host["ReadonlyRootfs"]
        assert not host["Privileged"]
        assert host["CapDrop"] == ["ALL"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert host["RestartPolicy"]["Name"] == "unless-stopped"
        assert min(host["Memory"], host["NanoCpus"], host["PidsLimit"]) > 0
        assert container["State"]["Health"]["Status"] == "healthy"
    assert sorted(broker["HostConfig"]["CapAdd"]) == ["CHOWN", "DAC_OVERRIDE", "FOWNER"]
    assert engine_filter["HostConfig"]["CapAdd"] is None
    assert engine_filter["HostConfig"]["NetworkMode"] == "none"
    assert str(engine_socket()) not in {mount["Source"] for mount in broker["Mounts"]}


def test_the_token_is_not_exposed(deployment: Deployment) -> None:
    """The token is in no log, and not in the engine's description of the containers."""
    assert TOKEN not in deployment.compose("logs")
    assert TOKEN not in json.dumps(deployment.container("broker"))


async def test_the_filter_restarts(deployment: Deployment) -> None:
    """A filter that died is restarted, and launches continue."""
    before = deployment.container("engine-filter")["State"]["Pid"]
    os.kill(before, 9)
    until(
        lambda: deployment.container("engine-filter")["State"]["Pid"] not in (0, before),
        "the filter's restart",
    )
    until(lambda: healthy(deployment.container("engine-filter")["Id"]), "its health check")
    await use(deployment.url, TOKEN)
