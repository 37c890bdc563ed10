"""The offline archive, installed on an empty engine without a network."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker.errors import DockerException

from tests.backends.probes import engines_are_away
from tests.compose.support import NO_COMPOSE, ROOT, containers, run, until

pytestmark = [
    *containers,
    *engines_are_away,
    pytest.mark.skipif(shutil.which("dockerd") is None, reason="apt-get install docker.io"),
]

INSTALL_S = 400.0


class EmptyEngine:
    """A dockerd without images, in a network namespace that has only a loopback interface."""

    def __init__(self, directory: Path) -> None:
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
            )
        try:
            until(self._answers, self._log.read_text)
        except BaseException:
            self.stop()
            raise

    @property
    def environ(self) -> dict[str, str]:
        return {"DOCKER_HOST": f"unix://{self.socket}"}

    def inside(self, *argv: str | Path, **environ: str) -> str:
        """Run a program in the engine's network."""
        return run("nsenter", f"--net=/proc/{self._process.pid}/ns/net", *argv, **environ)

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


@pytest.fixture(scope="module")
def empty_engine() -> Iterator[EmptyEngine]:
    with tempfile.TemporaryDirectory(prefix="kb-engine-", dir="/var/tmp") as directory:
        engine = EmptyEngine(Path(directory))
        try:
            yield engine
        finally:
            engine.stop()


@pytest.fixture(scope="module")
def small_archive(bundle: Path, empty_engine: EmptyEngine) -> Iterator[Path]:
    """The archive with small files in place of its images and valid checksums, so that checks are fast."""
    with tempfile.TemporaryDirectory(dir=bundle.parent) as name:
        directory = Path(name)
        for path in bundle.iterdir():
            if path.name != "images.tar.gz":
                shutil.copy(path, directory)
        images, sums = directory / "images.tar.gz", directory / "SHA256SUMS"
        images.write_bytes(b"no images")
        lines = [line for line in sums.read_text().splitlines() if not line.endswith(images.name)]
        lines.append(f"{hashlib.sha256(images.read_bytes()).hexdigest()}  {images.name}")
        sums.write_text("\n".join([*lines, ""]))
        check = ["sh", directory / "install.sh", "--check"]
        assert "is complete" in run(*check, **empty_engine.environ)
        yield directory


@pytest.fixture
def prefix() -> Iterator[Path]:
    """Where to install; nothing is there yet."""
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/var/tmp") as directory:
        yield Path(directory, "kb")


def cell(engine: EmptyEngine, prefix: Path) -> None:
    """A client of the published port gets what a cell prints."""
    url = ["--url", "http://127.0.0.1:8731"]
    token = (prefix / "token").read_text()
    client = ROOT / ".venv/bin/kernelbroker"
    said = engine.inside(client, *url, "exec", "print(6 * 7)", KERNELBROKER_TOKEN=token)
    assert said == "42\n"


def comparable(container: dict[str, Any]) -> dict[str, Any]:
    """The options of a container that compose.yaml sets, from either way of starting it."""
    host, config = container["HostConfig"], container["Config"]
    keys = (
        *("CapDrop", "Init", "Memory", "NanoCpus", "NetworkMode", "PidsLimit"),
        *("PortBindings", "Privileged", "ReadonlyRootfs", "RestartPolicy", "SecurityOpt", "Tmpfs"),
    )
    check = config["Healthcheck"]
    command = check["Test"][1:] if check["Test"][0] == "CMD" else check["Test"][1].split()
    return {
        **{key: host.get(key) or None for key in keys},
        "Command": [*config["Entrypoint"], *(config["Cmd"] or [])],
        "User": config["User"],
        "CapAdd": [name.removeprefix("CAP_") for name in host["CapAdd"] or []],
        "Image": container["Image"],
        "Env": sorted(config["Env"]),
        "Healthcheck": {**check, "Test": command},
        "Mounts": sorted((m["Source"], m["Destination"], m["RW"]) for m in container["Mounts"]),
        "Stop": config.get("StopTimeout"),
    }


def test_the_archive_installs_a_broker(
    bundle: Path, empty_engine: EmptyEngine, prefix: Path
) -> None:
    """The archive alone installs a working broker, also repeatedly, and can be uninstalled."""
    install = ["sh", bundle / "install.sh", "--prefix", prefix, "--publish", "127.0.0.1:8731"]
    environ = empty_engine.environ
    assert empty_engine.contents() == []
    kept = []
    ways = [["--plain"]] if NO_COMPOSE else [["--plain"], []]
    for way in ways:
        said = run(*install, *way, timeout=INSTALL_S, **environ)
        assert "a test cell ran" in said
        token = (prefix / "token").read_text()
        assert token not in said
        assert (prefix / "token").stat().st_mode & 0o777 == 0o600
        cell(empty_engine, prefix)
        kept.append(
            [comparable(empty_engine.service(name)) for name in ("broker", "engine-filter")]
        )
    for plain, composed in zip(*kept, strict=True) if len(kept) == 2 else []:
        differences = {
            key: (plain[key], composed[key]) for key in plain if plain[key] != composed[key]
        }
        assert differences == {}, "the plain way is not what compose.yaml says"
    before = [empty_engine.service(name)["Id"] for name in ("broker", "engine-filter")]
    again = ["sh", bundle / "install.sh", "--prefix", prefix]
    if not NO_COMPOSE:
        run(*again, timeout=INSTALL_S, **environ)  # the published port is remembered
        assert [empty_engine.service(n)["Id"] for n in ("broker", "engine-filter")] == before
        cell(empty_engine, prefix)
    assert (prefix / "token").read_text() == token
    run("sh", prefix / "install.sh", "--uninstall", "--prefix", prefix, **environ)
    assert empty_engine.contents() == []
    assert not prefix.exists()


@pytest.mark.parametrize(
    ("how", "file"),
    [
        case
        for case in itertools.product(
            ("changed", "missing", "not listed"),
            ("images.tar.gz", "compose.yaml", "install.sh", "images.env"),
        )
        if case != ("missing", "install.sh")  # nothing is there to run
    ],
)
def test_an_archive_that_was_changed(
    small_archive: Path, empty_engine: EmptyEngine, prefix: Path, file: str, how: str
) -> None:
    """A changed archive is refused completely."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        shutil.copytree(small_archive, directory, dirs_exist_ok=True)
        shutil.copy(directory / "install.sh", directory / "run.sh")  # as it was
        victim = directory / ("SHA256SUMS" if how == "not listed" else file)
        if how == "changed":
            whole = victim.read_bytes()
            victim.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
        elif how == "missing":
            victim.unlink()
        else:
            lines = victim.read_text().splitlines(keepends=True)
            victim.write_text("".join(line for line in lines if not line.endswith(f" {file}\n")))
        script = directory / "run.sh"
        said = run("sh", script, "--prefix", prefix, fails=True, **empty_engine.environ)
    assert "do not use this archive" in said or "damaged or changed" in said
    assert empty_engine.contents() == []
    assert not prefix.exists()


def test_check_changes_nothing(bundle: Path, empty_engine: EmptyEngine, prefix: Path) -> None:
    """--check reports and changes nothing; invalid arguments are refused."""
    install = ["sh", bundle / "install.sh", "--prefix", prefix]
    assert "is complete" in run(*install, "--check", **empty_engine.environ)
    for wrong in (["--prefx", "/x"], ["--prefix", "x"], ["--prefix", "/a/../b"], ["--prefix", "/"]):
        run("sh", bundle / "install.sh", *wrong, fails=True, **empty_engine.environ)
    gone = run(*install, fails=True, DOCKER_HOST="unix:///nonexistent.sock")
    assert "does not answer" in gone
    assert empty_engine.contents() == []
    assert not prefix.exists()
