"""The broker and its engine in one container: images from the archive, and an ordered end."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.probes import engines_are_away
from tests.compose.conftest import DIND_IMAGE
from tests.compose.support import containers, engine_socket, healthy, run, until, use
from tests.e2e.support import STORE
from tests.support.requires import IMAGE, engine

pytestmark = [*containers, *engines_are_away, pytest.mark.long]

NAME = f"kernelbroker-test-dind-{os.getpid()}"
TOKEN = "a token of the tests"
# As docs/deployment.md has it: what an inner engine needs, which is less than --privileged.
RIGHTS = (
    *("--cap-add", "SYS_ADMIN", "--cap-add", "NET_ADMIN"),
    *("--device-cgroup-rule", "a *:* rwm"),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
    *("--security-opt", "systempaths=unconfined"),
)
FIRST_START_S = 400.0
"""It loads the image."""


class Container:
    """The container, with its own volumes and network."""

    def start(self, *options: str | Path) -> None:
        run(
            *("docker", "run", "--detach", "--name", NAME, "--network", NAME, *RIGHTS),
            *("--publish", "127.0.0.1:0:8720", "--volume", f"{NAME}:/var/lib/docker"),
            *("--env", f"KERNELBROKER_TOKEN={TOKEN}", "--env", "KERNELBROKER_POOL__MIN_SIZE=1"),
            *("--env", f"KERNELBROKER_DOCKER__IMAGE={IMAGE}", "--health-interval", "1s"),
            *(*options, DIND_IMAGE),
        )
        until(lambda: healthy(NAME), self.log, FIRST_START_S)

    def remove(self) -> None:
        run("docker", "rm", "--force", "--volumes", NAME)

    def log(self) -> str:
        return run("docker", "logs", NAME)

    def inspect(self) -> dict[str, Any]:
        with engine() as api:
            described: dict[str, Any] = api.inspect_container(NAME)
        return described

    @property
    def url(self) -> str:
        (port,) = self.inspect()["NetworkSettings"]["Ports"]["8720/tcp"]
        return f"http://127.0.0.1:{port['HostPort']}"

    def health(self) -> Any:
        with urllib.request.urlopen(f"{self.url}/health") as answer:
            return json.load(answer)

    def stop(self) -> int:
        """Returns its exit status."""
        run("docker", "stop", "--time", "60", NAME)
        return self.exit_status()

    def exit_status(self) -> int:
        state = until(lambda: self.state_if_ended(), "its end")
        return int(state["ExitCode"])

    def state_if_ended(self) -> dict[str, Any] | None:
        state: dict[str, Any] = self.inspect()["State"]
        return None if state["Running"] else state

    def process(self, words: str) -> int:
        """The pid, as the host sees it, of the process with this in its command line."""
        with engine() as api:
            rows = api.top(NAME, "-eo pid,args")["Processes"]
        (pid,) = (int(row[0]) for row in rows if words in row[1])
        return pid

    def left_inside(self) -> list[Path]:
        """Containers of the inner engine, and the broker's files."""
        with engine() as api:
            volume = Path(api.inspect_volume(NAME)["Mountpoint"])
        left = [*(volume / "containers").iterdir(), *(volume / "kernelbroker").iterdir()]
        return [path for path in left if path.name not in STORE]


@pytest.fixture(scope="module")
def container(dind_bundle: Path) -> Iterator[Container]:
    container = Container()
    with engine() as api:
        api.create_network(NAME)
        api.create_volume(NAME)
        try:
            container.start("--volume", f"{dind_bundle}/images:/images:ro")
            yield container
        finally:
            container.remove()
            api.remove_network(NAME)
            api.remove_volume(NAME)


async def test_the_container_starts_stops_and_restarts(container: Container) -> None:
    """It serves from its gVisor, stops in order, and loads the image once."""
    await use(container.url, TOKEN)
    assert container.health()["isolation"] == "gvisor"
    assert container.stop() == 0
    assert container.left_inside() == []

    container.remove()
    container.start()  # without the file
    await use(container.url, TOKEN)


@pytest.mark.parametrize("program", ["kernelbroker-server", "dockerd --config-file"])
async def test_one_of_two_ends(container: Container, program: str) -> None:
    """If its broker or its engine ends, the container ends with a failure; the next one cleans up."""
    os.kill(container.process(program), signal.SIGKILL)
    assert container.exit_status() != 0
    assert "has ended" in container.log()
    assert container.left_inside() != []

    container.remove()
    container.start()
    await use(container.url, TOKEN)


def test_it_leaves_nothing(container: Container) -> None:
    """After all this its end in order leaves nothing."""
    assert container.stop() == 0
    assert container.left_inside() == []


def test_a_missing_image_is_explained(container: Container) -> None:
    """If no file holds the image, the message says how to provide it."""
    container.remove()
    run("docker", "run", "--detach", "--name", NAME, "--network", NAME, *RIGHTS, DIND_IMAGE)
    assert container.exit_status() == 1
    assert f"{IMAGE} is not in /images" in container.log()
    assert "docker save" in container.log()


def test_the_archive_installs_it(dind_bundle: Path, prefix: Path) -> None:
    """The installer of the archive starts it, and removes all of it."""
    environ = {"DOCKER_HOST": f"unix://{engine_socket()}"}
    with engine() as api:
        (image,) = api.images(DIND_IMAGE)
    script = ["sh", dind_bundle / "install.sh", "--prefix", prefix]
    try:
        said = run(*script, "--publish", "127.0.0.1:8732", timeout=FIRST_START_S, **environ)
        assert "a test cell ran" in said
        with engine() as api:
            label = {"label": f"kernelbroker.deployment={prefix}"}
            (found,) = api.containers(filters=label)
            host = api.inspect_container(found["Id"])["HostConfig"]
        assert not host["Privileged"]
        assert [name.removeprefix("CAP_") for name in sorted(host["CapAdd"])] == [
            "NET_ADMIN",
            "SYS_ADMIN",
        ]
    finally:
        with engine() as api:  # other tests use the image
            api.tag(image["Id"], "kernelbroker-test-kept")
        run("sh", dind_bundle / "install.sh", "--uninstall", "--prefix", prefix, **environ)
        run("docker", "tag", "kernelbroker-test-kept", DIND_IMAGE)
        run("docker", "rmi", "kernelbroker-test-kept")
    with engine() as api:
        assert api.containers(all=True, filters=label) == []
        assert api.networks(names=["kernelbroker-dind_default"]) == []
        assert api.volumes(filters={"name": "kernelbroker-dind_engine"})["Volumes"] in (None, [])
    assert not prefix.exists()
