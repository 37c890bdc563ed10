"""A container engine without images, on a machine without a network."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException

from tests.compose.support import run, until


class EmptyEngine:
    """A dockerd in a network namespace that has only a loopback interface.

    Args:
        directory: for all it has.
        environ: the PATH of another version.
    """

    def __init__(self, directory: Path, environ: Mapping[str, str] | None = None) -> None:
        self.socket = directory / "docker.sock"
        self._directory = directory
        self._log = directory / "log"
        options = {
            "host": f"unix://{self.socket}",
            "data-root": directory / "data",
            "exec-root": directory / "exec",
            "pidfile": directory / "pid",
        }
        argv = ["dockerd", *(f"--{key}={value}" for key, value in options.items())]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh", *argv],
                stdout=log,
                stderr=log,
                env=None if environ is None else dict(environ),
            )
        try:
            until(self._answers, self._log.read_text)
        except BaseException:
            self.stop()
            raise

    @property
    def environ(self) -> dict[str, str]:
        return {"DOCKER_HOST": f"unix://{self.socket}"}

    def argv_inside(self, *argv: str | Path) -> list[str]:
        """The call of a program in the engine's network."""
        return list(map(str, ("nsenter", f"--net=/proc/{self._process.pid}/ns/net", *argv)))

    def inside(self, *argv: str | Path, **environ: str) -> str:
        """Run a program in the engine's network."""
        return run(*self.argv_inside(*argv), **environ)

    def docker(self, *argv: str | Path, **options: Any) -> str:
        return run("docker", *argv, **self.environ, **options)

    @contextlib.contextmanager
    def api(self) -> Iterator[Any]:
        api = docker.APIClient(self.environ["DOCKER_HOST"], version="auto")
        try:
            yield api
        finally:
            api.close()

    def service(self, name: str) -> dict[str, Any]:
        with self.api() as api:
            (found,) = api.containers(filters={"label": f"kernelbroker.service={name}"})
            described: dict[str, Any] = api.inspect_container(found["Id"])
        return described

    def contents(self) -> list[Any]:
        """All containers, images, networks and volumes of the engine."""
        with self.api() as api:
            networks = api.networks(filters={"type": "custom"})
            volumes = api.volumes()["Volumes"] or []
            return [*api.containers(all=True), *api.images(), *networks, *volumes]

    def stop(self) -> None:
        with contextlib.suppress(DockerException), self.api() as api:
            for container in api.containers(all=True):
                api.remove_container(container["Id"], force=True)
        self._process.terminate()
        self._process.wait(60)
        for line in reversed(Path("/proc/mounts").read_text().splitlines()):
            if (mount := line.split()[1]).startswith(f"{self._directory}/"):
                run("umount", mount)

    def _answers(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        asking = ["docker", "--host", f"unix://{self.socket}", "version"]
        return subprocess.run(asking, capture_output=True).returncode == 0


@contextlib.contextmanager
def empty_engine(environ: Mapping[str, str] | None = None) -> Iterator[EmptyEngine]:
    """An engine that runs in the block, and of which nothing is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="kb-engine-", dir="/var/tmp") as directory:
        engine = EmptyEngine(Path(directory), environ)
        try:
            yield engine
        finally:
            engine.stop()
