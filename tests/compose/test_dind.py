"""The broker and its engine in one container: images from a file, and an ordered end."""

from __future__ import annotations

import json
import os
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.probes import IMAGE, engine, engines_are_away
from tests.compose.support import build, containers, healthy, run, until, use

pytestmark = [*containers, *engines_are_away]

DIND_IMAGE = "kernelbroker-test-dind"
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
        return [
            path
            for path in left
            if path.name not in (".state", ".workspaces", "workspaces", ".checkpoints")
        ]


@pytest.fixture(scope="module")
def container(bundle: Path, broker_image: str) -> Iterator[Container]:
    build(DIND_IMAGE, "dind-image", f"BROKER_IMAGE={broker_image}", f"DIND_IMAGE={DIND_IMAGE}")
    container = Container()
    with engine() as api:
        api.create_network(NAME)
        api.create_volume(NAME)
        try:
            container.start("--volume", f"{bundle}:/images:ro")
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
