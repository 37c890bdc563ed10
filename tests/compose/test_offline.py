"""The archive for machines with an engine, installed on an empty engine without a network.

The tests of `installation` follow each other: installed, used, upgraded, uninstalled.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from compose import images
from tests.backends.probes import engines_are_away
from tests.compose.conftest import BROKER_IMAGE
from tests.compose.empty_engine import EmptyEngine
from tests.compose.empty_engine import empty_engine as an_empty_engine
from tests.compose.support import ROOT, containers, run
from tests.support.requires import ENGINE, IMAGE, missing, requires

pytestmark = [
    *containers,
    *engines_are_away,
    requires("dockerd"),
]

INSTALL_S = 400.0


@pytest.fixture(scope="module")
def empty_engine() -> Iterator[EmptyEngine]:
    with an_empty_engine() as engine:
        yield engine


@pytest.fixture(scope="module")
def small_archive(bundle: Path, empty_engine: EmptyEngine) -> Iterator[Path]:
    """The archive with small files in place of its images and valid checksums, so that checks are fast."""
    with tempfile.TemporaryDirectory(dir=bundle.parent) as name:
        directory = Path(name)
        for path in bundle.iterdir():
            if path.is_file() and path.name != "images.tar.gz" and "SUMS" not in path.name:
                shutil.copy(path, directory)
        (directory / "images.tar.gz").write_bytes(b"no images")
        write_sums(directory)
        check = ["sh", directory / "install.sh", "--check"]
        assert "is complete" in run(*check, **empty_engine.environ)
        yield directory


def cell(engine: EmptyEngine, prefix: Path) -> None:
    """A client of the published port gets what a cell prints."""
    url = ["--url", f"http://{PUBLISHED}"]
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


PUBLISHED = "127.0.0.1:8731"


class Installation:
    """An installation of the archive on a machine without a network."""

    def __init__(self, bundle: Path, engine: EmptyEngine, prefix: Path) -> None:
        self.bundle, self.engine, self.prefix = bundle, engine, prefix

    def install(self, archive: Path, *options: str | Path, **environ: Any) -> str:
        argv = ["sh", archive / "install.sh", "--prefix", self.prefix, *options]
        return run(*argv, timeout=INSTALL_S, **self.engine.environ, **environ)

    @property
    def token(self) -> str:
        return (self.prefix / "token").read_text()

    def containers(self) -> list[str]:
        return [self.engine.service(name)["Id"] for name in ("broker", "engine-filter")]

    def image(self, name: str) -> str:
        return self.engine.docker("image", "inspect", "--format", "{{.Id}}", name).strip()

    def changed(self, directory: Path, version: str, **lines: str) -> Path:
        """An archive of another version, whose images have these lines more in their Dockerfiles."""
        archive = directory / version
        archive.mkdir()
        for path in self.bundle.iterdir():
            if path.is_file() and path.name != "images.tar.gz" and "SUMS" not in path.name:
                shutil.copy(path, archive)
        listed = (self.prefix / "images.list").read_text()
        built = {}
        for name in [line.split()[1] for line in listed.splitlines()]:
            if line := lines.get(name.partition(":")[0]):
                # Under another name: the broker launches sandboxes meanwhile.
                built[name] = name.replace(":", "-next:")
                (directory / "Dockerfile").write_text(f"FROM {name}\n{line}\n")
                options = ["--network", "none", "--tag", built[name]]
                self.engine.docker("build", *options, directory, DOCKER_BUILDKIT="0")
                listed = listed.replace(self.image(name), self.image(built[name]))
        images_file = archive / "images.tar.gz"
        self.engine.docker("save", "--output", images_file, *built.values(), timeout=INSTALL_S)
        self.engine.docker("image", "rm", *built.values())
        # Of two files of the same name, an engine takes the last one.
        manifest = directory / "manifest.json"
        text = run("tar", "-xOf", images_file, manifest.name)
        manifest.write_text(text.replace("-next:", ":"))
        run("tar", "-rf", images_file, "-C", directory, manifest.name)
        (archive / "images.list").write_text(listed)
        variables = archive / "images.env"
        text = re.sub("_VERSION=.*", f"_VERSION={version}", variables.read_text(), count=1)
        variables.write_text(text)
        write_sums(archive)
        return archive


def write_sums(directory: Path) -> None:
    """Checksums without a signature: that is another test."""
    files = [path for path in directory.iterdir() if path.is_file() and "SUMS" not in path.name]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / "SHA256SUMS").write_text("".join(lines))


@pytest.fixture(scope="module")
def installation(bundle: Path, empty_engine: EmptyEngine) -> Iterator[Installation]:
    """The archive, installed by `docker run`."""
    assert empty_engine.contents() == []
    with tempfile.TemporaryDirectory(prefix="kb-", dir="/var/tmp") as directory:
        installation = Installation(bundle, empty_engine, Path(directory, "kb"))
        key = bundle.parent / "signing-key.pub"
        said = installation.install(bundle, "--publish", PUBLISHED, "--plain", "--key", key)
        assert "the signature is by" in said
        assert "a test cell ran" in said
        assert installation.token not in said
        yield installation


@pytest.fixture(scope="module")
def application(bundle: Path, empty_engine: EmptyEngine) -> Iterator[Path]:
    """An environment of an application, made from the archive's wheels without a network."""
    with tempfile.TemporaryDirectory(prefix="kb-app-", dir="/var/tmp") as name:
        environment = Path(name)
        run(sys.executable, "-m", "venv", environment)
        pip = [
            environment / "bin/pip",
            "install",
            "--quiet",
            "--no-compile",
            "--no-index",
            "--find-links",
        ]
        empty_engine.inside(
            *pip, bundle / "wheels", "kernelbroker[pandas]", "mcp", timeout=INSTALL_S
        )
        yield environment


def test_the_archive_installs_a_broker(installation: Installation) -> None:
    """The archive installs a working broker; `docker run` and Compose start the same; twice is once."""
    token, ways = installation.token, [{}]
    assert (installation.prefix / "token").stat().st_mode & 0o777 == 0o600
    cell(installation.engine, installation.prefix)
    plain = [comparable(installation.engine.service(name)) for name in ("broker", "engine-filter")]
    # Version 2, and version 1 where docker finds no plugin.
    each_way = {"compose 2": {}, "compose 1": {"DOCKER_CONFIG": "/nonexistent"}}
    ways = [way for name, way in each_way.items() if not missing(name)]
    for way in ways:
        said = installation.install(installation.bundle, **way)  # the published port is remembered
        assert "starting with docker" in said
        cell(installation.engine, installation.prefix)
        composed = [
            comparable(installation.engine.service(name)) for name in ("broker", "engine-filter")
        ]
        assert composed == plain, "the plain way is not what compose.yaml says"
        before = installation.containers()
        installation.install(installation.bundle, **way)
        assert installation.containers() == before
    assert installation.token == token


def test_an_application_uses_the_wheels(installation: Installation, application: Path) -> None:
    """The archive's example, with nothing but its wheels, uses the SDK and MCP without a network."""
    environ = {"KERNELBROKER_URL": f"http://{PUBLISHED}", "KERNELBROKER_TOKEN": installation.token}
    program = [application / "bin/python", installation.bundle / "example/app.py"]
    said = installation.engine.inside(*program, **environ)
    assert said == "SDK: {'Bern': 20, 'Oslo': 15}\nMCP: 45\n"


@pytest.mark.long
def test_an_upgrade_under_load(
    installation: Installation, application: Path, tmp_path: Path
) -> None:
    """Sessions go on in a newer version with other images; one that does not come up is taken back."""
    engine = installation.engine
    names = [BROKER_IMAGE, IMAGE]
    program = [
        application / "bin/python",
        ROOT / "tests/compose/load.py",
        f"http://{PUBLISHED}",
        "3",
    ]
    load = subprocess.Popen(
        engine.argv_inside(*program),
        env=os.environ | {"KERNELBROKER_TOKEN": installation.token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert load.stdout is not None
        assert sorted(load.stdout.readline() for _ in range(3)) == [
            f"session-{i} runs\n" for i in range(3)
        ]
        before = [installation.image(name) for name in names]
        archive = installation.changed(
            tmp_path, "9.9.8", **dict.fromkeys(names, "LABEL a.test=newer")
        )
        said = installation.install(archive)
        assert f"upgrading version {images.version()} to 9.9.8" in said
        after = [installation.image(name) for name in names]
        assert not set(before) & set(after)
        assert engine.service("broker")["Image"] == after[0]
        cell(engine, installation.prefix)

        archive = installation.changed(tmp_path, "9.9.9", **{BROKER_IMAGE: 'ENTRYPOINT ["false"]'})
        argv = ["sh", archive / "install.sh", "--prefix", installation.prefix]
        said = run(*argv, timeout=INSTALL_S, fails=True, **engine.environ)
        assert "the broker is not healthy" in said
        assert "The version before runs again" in said
        assert [installation.image(name) for name in names] == after
        assert engine.service("broker")["Image"] == after[0]
        cell(engine, installation.prefix)
        assert not (installation.prefix / "previous").exists()
        out, _ = load.communicate("", timeout=INSTALL_S)
    finally:
        load.kill()
        load.wait()
    report = json.loads(out.splitlines()[-1])
    assert [each["problem"] for each in report.values()] == [None] * 3
    assert all(each["is_whole"] and each["cells"] > 10 for each in report.values()), report


def test_it_is_uninstalled_without_a_trace(installation: Installation) -> None:
    """After --uninstall nothing is left in the engine and on the disk, but files of the user."""
    prefix, engine = installation.prefix, installation.engine
    (prefix / "shared/mine.csv").write_text("a,b\n")
    script = prefix.parent / "install.sh"
    shutil.copy(prefix / "install.sh", script)
    said = run("sh", prefix / "install.sh", "--uninstall", "--prefix", prefix, **engine.environ)
    assert "--purge" in said
    assert [path.name for path in prefix.rglob("*")] == ["shared", "mine.csv"]
    assert engine.contents() == []
    run("sh", script, "--uninstall", "--prefix", prefix, "--purge", **engine.environ)
    assert not prefix.exists()


@pytest.mark.long
@requires("a second engine")
def test_a_current_engine(bundle: Path, prefix: Path) -> None:
    """The archive is installed on an engine of today, used, and removed from it."""
    path = f"{ENGINE / 'usr/bin'}:{ENGINE / 'usr/sbin'}:{os.environ['PATH']}"
    with an_empty_engine(os.environ | {"PATH": path}) as engine:
        assert int(engine.docker("version", "--format", "{{.Server.Version}}").split(".")[0]) >= 28
        options = ["--prefix", prefix, "--publish", PUBLISHED]
        said = run("sh", bundle / "install.sh", *options, timeout=INSTALL_S, **engine.environ)
        assert "a test cell ran" in said
        cell(engine, prefix)
        run("sh", prefix / "install.sh", "--uninstall", "--prefix", prefix, **engine.environ)
        assert engine.contents() == []
    assert not prefix.exists()


# The archive


@pytest.mark.parametrize("python", ["3.11", "3.12", "3.13"])
def test_the_wheels_are_complete(bundle: Path, python: str, tmp_path: Path) -> None:
    """For each Python, the wheels have the SDK, the broker, MCP, and all that they need."""
    options = ["--no-index", "--find-links", bundle / "wheels", "--python-version", python]
    options += ["--python-platform", "x86_64-manylinux_2_28", "--target", tmp_path, "--dry-run"]
    wanted = ["kernelbroker[server,pandas,risk]", "mcp"]
    said = run(ROOT / ".venv/bin/uv", "pip", "install", *options, *wanted)
    assert "+ kernelbroker-server==" in said
    assert "+ pyarrow==" in said


def test_the_server_is_what_the_image_has(bundle: Path, broker_image: str, tmp_path: Path) -> None:
    """`kernelbroker[server]` from the archive's wheels has the distributions of the broker's image."""
    uv = ROOT / ".venv/bin/uv"
    run(uv, "venv", "--quiet", "--python", sys.executable, tmp_path / "env")
    target = ["--python", tmp_path / "env/bin/python", "--no-index", "--find-links"]
    run(uv, "pip", "install", *target, bundle / "wheels", "kernelbroker[server]")
    listing = (
        "from importlib.metadata import distributions\n"
        "print(sorted((d.metadata['Name'].lower(), d.version) for d in distributions()))"
    )
    inside = run(
        "docker",
        "run",
        "--rm",
        "--network",
        "none",
        "--entrypoint",
        "python",
        broker_image,
        "-c",
        listing,
    )
    assert run(tmp_path / "env/bin/python", "-P", "-c", listing) == inside
    assert "mcp" in inside
    assert "grpcio" in inside
    (site,) = (tmp_path / "env/lib").glob("python*/site-packages")
    assert [*(site / "kernelbroker_server/console/static").rglob("*.js")]


@pytest.mark.parametrize("form", ["bundle", pytest.param("dind_bundle", marks=pytest.mark.long)])
def test_the_documents_are_in_the_archive(form: str, request: pytest.FixtureRequest) -> None:
    """Both archives have their documents, whose links lead to files of the archive."""
    directory: Path = request.getfixturevalue(form)
    for name in ("README.md", "FAQ.md"):
        text = (directory / name).read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (directory / link).exists(), link
    for name in ("LICENSE", "signing-key.pub", "SHA256SUMS.sig", "example/app.py"):
        assert (directory / name).exists()
    if form == "dind_bundle":
        assert (directory / "init").stat().st_mode & 0o111


def test_the_signature_is_checked(
    small_archive: Path, empty_engine: EmptyEngine, tmp_path: Path
) -> None:
    """An archive that another key has signed, or none, is refused if --key names the supplier's."""
    directory = tmp_path / "archive"
    shutil.copytree(small_archive, directory)
    script, key = directory / "install.sh", tmp_path / "key.pem"
    run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    run("openssl", "pkey", "-in", key, "-pubout", "-out", tmp_path / "key.pub")
    other = directory / "signing-key.pub"
    check = ["sh", script, "--check", "--key"]
    unsigned = run(*check, tmp_path / "key.pub", fails=True, **empty_engine.environ)
    assert "has no signature" in unsigned
    sums = directory / "SHA256SUMS"
    run("openssl", "dgst", "-sha256", "-sign", key, "-out", f"{sums}.sig", sums)
    assert "the signature is by" in run(*check, tmp_path / "key.pub", **empty_engine.environ)
    refused = run(*check, other, fails=True, **empty_engine.environ)
    assert "the signature is not by" in refused
    alone = run("sh", script, "--check", fails=True, **empty_engine.environ)
    assert "its signature is wrong" in alone


def test_a_machine_that_does_not_meet_the_requirements(
    small_archive: Path, empty_engine: EmptyEngine, prefix: Path, tmp_path: Path
) -> None:
    """The installer names each problem of the machine, and changes nothing."""
    directory = tmp_path / "archive"
    shutil.copytree(small_archive, directory)
    variables = directory / "images.env"
    text = re.sub("ARCHITECTURE=.*", "ARCHITECTURE=s390x", variables.read_text())
    variables.write_text(re.sub("DISK_MB=.*", "DISK_MB=99000000", text))
    write_sums(directory)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        published = f"127.0.0.1:{listener.getsockname()[1]}"
        argv = ["sh", directory / "install.sh", "--prefix", prefix, "--publish", published]
        said = run(*argv, fails=True, **empty_engine.environ)
    assert "the archive is for s390x" in said
    assert "the images need 99000000" in said
    assert f"port {listener_port(published)} is in use" in said
    assert not prefix.exists()


def listener_port(address: str) -> str:
    return address.rpartition(":")[2]


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
