"""The doctor finds faults that are really there, says what to do, and finds nothing else."""

from __future__ import annotations

import gc
import json
import os
import re
import shlex
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from kernelbroker import cli
from kernelbroker_server import advice
from kernelbroker_server.config import Settings
from kernelbroker_server.config_file import load
from kernelbroker_server.doctor import sandboxes
from kernelbroker_server.doctor.checks import CHECKS, examine
from kernelbroker_server.doctor.findings import Finding, Level
from kernelbroker_server.doctor.patient import Patient
from kernelbroker_server.sessions.database import Database
from kernelbroker_server.sessions.state_directory import StateDirectory
from kernelbroker_server.tenants.tokens import TokenFile

from tests.e2e.support import free_port, without_ours
from tests.support.requires import IMAGE, KERNEL_PYTHON, require, requires

QUICK = [each for each in CHECKS if each is not sandboxes.sandboxes]
"""All checks except the one that runs a cell."""


@pytest.fixture
def directory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path for all that a broker writes, where no broker runs."""
    with tempfile.TemporaryDirectory(prefix="kb-") as name:
        monkeypatch.setenv("KERNELBROKER_RUNTIME_FILE", f"{name}/broker.json")
        for each in ("data", "run"):
            Path(name, each).mkdir(mode=0o700)
        yield Path(name)


def of_local(directory: Path, **values: Any) -> Settings:
    """The settings of a healthy broker with jails."""
    local = {
        "kernel_python": KERNEL_PYTHON,
        "data_dir": directory / "data",
        "run_dir": directory / "run",
    }
    return Settings(**{"port": 0, "local": local | values.pop("local", {}), **values})


def of_docker(directory: Path, **docker: Any) -> Settings:
    """The settings of a healthy broker with containers."""
    values = {"image": IMAGE, "data_dir": directory / "data", "run_dir": directory / "run"}
    return Settings(port=0, backend="docker", docker=values | docker)


def faults(settings: Settings) -> list[Finding]:
    """What is wrong."""
    found = examine(Patient(settings, "the test"), QUICK)
    return [each for each in found if each.level is not Level.OK]


def only(found: Sequence[Finding], check: str, message: str, remedy: str) -> None:
    """Nothing but this is wrong, and what to do is said."""
    assert [each.check for each in found] == [check], found
    assert message in found[0].message
    assert remedy in found[0].remedy
    for command in commands(found[0]):
        assert_can_be_typed(command)


def commands(finding: Finding) -> list[list[str]]:
    """The commands in a remedy."""
    return [shlex.split(each) for each in re.findall(r"`(.*?)`", finding.remedy)]


def assert_can_be_typed(command: list[str]) -> None:
    """Its program is one of this machine or of Debian, and takes these arguments."""
    match command:
        case ["export", named]:  # of a shell
            trial = [named.partition("=")[2], "--version"]
        case [
            "systemctl" | "timedatectl" | "sysctl" | "apt-get" | "prlimit" | "chown" | "docker",
            *_,
        ]:
            return  # what they change is not the test's
        case [python, "-m", "pip", "install", *what]:
            trial = [python, "-m", "pip", "install", "--dry-run", "--quiet", *what]
        case [python, "-m", "kernelbroker_server" | "kernelbroker.cli", *_]:
            trial = [*command, "--help"]
        case [python, builder, "build", image]:
            trial = [python, builder, "names", image]
        case ["chmod" | "rm", *_]:
            trial = command
        case _:
            pytest.fail(f"what is this: {command}")
    run = subprocess.run(trial, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stderr


def openssl(arguments: str) -> None:
    require("openssl")
    subprocess.run(["openssl", *arguments.split()], check=True, capture_output=True)


def certificate(directory: Path, *validity: str) -> dict[str, Path]:
    """A self-signed certificate and its key."""
    tls = {"certificate": directory / "cert.pem", "key": directory / "key.pem"}
    own = f"-keyout {tls['key']} -out {tls['certificate']}"
    openssl(
        f"req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj /CN=a -days 99 {own}"
    )
    if validity:
        (directory / "index").write_text("")
        (directory / "serial").write_text("01")
        (directory / "ca.conf").write_text(
            f"[ca]\ndefault_ca=own\n[own]\ndatabase={directory}/index\nserial={directory}/serial\n"
            f"new_certs_dir={directory}\ndefault_md=sha256\npolicy=any\n[any]\ncommonName=supplied\n"
        )
        openssl(f"req -new -key {tls['key']} -subj /CN=a -out {directory}/request")
        openssl(
            f"ca -batch -notext -selfsign -config {directory}/ca.conf -keyfile {tls['key']} -startdate "
            f"{validity[0]} -enddate {validity[1]} -in {directory}/request -out {tls['certificate']}"
        )
    return tls


def test_an_expired_certificate(directory: Path) -> None:
    """A certificate that has expired is found, and so is one that is about to; a good one is not."""
    good = certificate(directory)
    assert faults(of_local(directory, tls=good)) == []
    expired = certificate(directory, "20200101000000Z", "20210101000000Z")
    only(faults(of_local(directory, tls=expired)), "certificates", "has expired", "Renew it")
    soon = time.strftime("%Y%m%d%H%M%SZ", time.gmtime(time.time() + 5.5 * 86_400))
    (found,) = faults(of_local(directory, tls=certificate(directory, "20200101000000Z", soon)))
    assert (found.level, found.check) == (Level.WARNING, "certificates")
    assert "expires in 5 days" in found.message


def test_a_key_of_another_certificate(directory: Path) -> None:
    """A key that does not fit is found, once."""
    tls = certificate(directory)
    (directory / "other").mkdir()
    tls["key"] = certificate(directory / "other")["key"]
    only(faults(of_local(directory, tls=tls)), "certificates", "cannot be used", "its own key")


def test_a_port_that_is_taken(directory: Path) -> None:
    """A port of another program is found, with the program."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        found = faults(of_local(directory, port=port))
    only(found, "ports", f"pid {os.getpid()}", "set port to a free one")
    assert faults(of_local(directory, port=port)) == []


def test_an_address_of_another_machine(directory: Path) -> None:
    """An address that this machine does not have is found."""
    settings = of_local(directory, host="192.0.2.1", port=free_port(), tls=certificate(directory))
    only(faults(settings), "ports", "192.0.2.1", "0.0.0.0")


@requires("root")
def test_a_full_disk(directory: Path) -> None:
    """A file system with too little room is found."""
    mounted = directory / "data"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "none", mounted], check=True)
    try:
        found = faults(of_local(directory))
    finally:
        subprocess.run(["umount", mounted], check=True)
    only(found, "directories", "MiB left", "Free space")


@requires("root")
def test_a_state_directory_of_another_user(directory: Path) -> None:
    """A state directory that belongs to another user is found."""
    state = directory / "data" / ".state"
    state.mkdir(mode=0o700)
    os.chown(state, 12345, 12345)
    only(faults(of_local(directory)), "directories", "belongs to user 12345", "chown -R 0")


def test_a_path_that_is_too_long_for_sockets(directory: Path) -> None:
    """A run_dir whose sockets would have too long names is found."""
    long = directory / ("x" * 90)
    found = faults(of_local(directory, local={"run_dir": long}))
    only(found, "directories", "too long", "shorter path")


def test_a_damaged_database(directory: Path) -> None:
    """A database that is damaged, foreign or of a newer version is found, and nothing is changed."""
    path = directory / "data" / ".state" / "store.sqlite3"
    path.parent.mkdir(mode=0o700)
    Database(path).close()
    assert faults(of_local(directory)) == []
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + os.urandom(len(whole) - 4096))
    only(faults(of_local(directory)), "state", "is damaged", "kernelbroker restore")
    path.write_bytes(whole)
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 999")
    connection.commit()
    connection.close()
    only(faults(of_local(directory)), "state", "newer version", "Install that version")
    assert sorted(each.name for each in path.parent.iterdir()) == ["store.sqlite3"]


def test_other_damage_of_the_state(directory: Path) -> None:
    """A damaged journal, a damaged key and a file that was kept aside are found."""
    state = directory / "data" / ".state"
    state.mkdir(mode=0o700)
    (state / "journal-0000000000000001").write_bytes(b"not a journal at all")
    (state / "seal-key").write_bytes(b"short")
    (state / "store.sqlite3.damaged-20260101-000000").touch()
    found = faults(of_local(directory))
    assert {each.check for each in found} == {"state"}
    text = " ".join(each.message for each in found)
    assert "journal-0000000000000001 is damaged" in text
    assert "seal-key" in text
    assert "kept aside" in text


def test_descriptions_that_cannot_be_read(directory: Path) -> None:
    """A damaged record of a workspace, and a description of a checkpoint of a newer version, are found."""
    record = directory / "data" / ".workspaces" / ("0" * 40) / "record.json"
    record.parent.mkdir(parents=True)
    record.write_bytes(b'{"tenant": "de')
    only(faults(of_local(directory)), "files", "record.json", "Start the broker")
    record.unlink()
    description = directory / "data" / ".checkpoints" / ("0" * 32) / "mark.json"
    description.parent.mkdir(parents=True)
    description.write_text('{"version": 99}')
    only(faults(of_local(directory)), "files", "mark.json", "go back to that")
    description.unlink()
    assert faults(of_local(directory)) == []


def test_a_broker_that_hangs(directory: Path) -> None:
    """A state directory that a process has, although no broker answers, is found."""
    held = StateDirectory(directory / "data" / ".state")
    try:
        only(faults(of_local(directory)), "state", "no broker answers", "end it")
    finally:
        held.release()


def test_tokens_that_nobody_can_use(directory: Path) -> None:
    """A token file without a valid token is found, and so are one for all to read and a damaged one."""
    path = directory / "tokens.json"
    settings = of_local(directory, tokens_file=path)
    only(faults(settings), "tokens", "there is no token", "token create")
    TokenFile(path).create("acme", lifetime=-1)
    only(faults(settings), "tokens", "have expired", "token create")
    TokenFile(path).create("acme")
    assert faults(settings) == []
    path.chmod(0o644)
    only(faults(settings), "tokens", "every user", "chmod o-rwx")
    assert faults(settings) == []  # the remedy was applied
    path.write_text("{")
    assert "is not a token file" in faults(settings)[-1].message


def test_a_remedy_names_the_configuration(directory: Path) -> None:
    """The command that creates a token changes the file of the configuration that was examined."""
    config = directory / "a broker.toml"
    config.write_text(
        f'backend = "local"\nport = 0\ntokens_file = "{directory}/tokens.json"\n[tenants.acme]\n'
        f'[local]\nkernel_python = "{KERNEL_PYTHON}"\ndata_dir = "{directory}/data"\n'
        f'run_dir = "{directory}/run"\n'
    )

    def tokens() -> list[Finding]:
        found = examine(Patient(load(config), str(config), config), QUICK)
        return [each for each in found if each.check == "tokens" and each.level is not Level.OK]

    ((command,),) = map(commands, tokens())
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    assert tokens() == []


@pytest.mark.parametrize("user", [0, 1000])
def test_remedies_for_root(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is not root is told to use sudo."""
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert advice.as_root("chown", 5, "a b") == ("`sudo " if user else "`") + "chown 5 'a b'`"


def test_a_clock_that_is_behind(directory: Path) -> None:
    """A clock that is behind what was written is found."""
    state = StateDirectory(directory / "data" / ".state")
    state.release()
    tomorrow = time.time() + 86_400
    os.utime(directory / "data" / ".state" / "lock", (tomorrow, tomorrow))
    only(faults(of_local(directory)), "clock", "behind", "NTP")


@pytest.fixture
def old_broker(directory: Path) -> Iterator[str]:
    """Something that answers as a broker of an older version, whose store has a fault."""
    health = {"status": "degraded", "version": "0.0.9", "pool": {}, "isolation": "bubblewrap"}
    health["reasons"] = ["state_dir: new results are not stored: the disk is full"]

    class Old(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(health).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Old)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_a_running_broker_of_another_version(directory: Path, old_broker: str) -> None:
    """A broker that was not restarted after an upgrade is found, with what its health reports."""
    runtime = {"url": old_broker, "token": None, "pid": os.getpid()}
    (directory / "broker.json").write_text(json.dumps(runtime))
    versions, health = faults(of_local(directory))
    assert "is of version 0.0.9" in versions.message
    assert version("kernelbroker-server") in versions.message
    assert "Restart it" in versions.remedy
    assert "the disk is full" in health.message
    assert "log" in health.remedy


def test_an_sdk_of_another_version(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages of different versions in one environment are found."""
    other = directory / "site" / "kernelbroker-0.0.9.dist-info"
    other.mkdir(parents=True)
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: kernelbroker\nVersion: 0.0.9\n")
    monkeypatch.syspath_prepend(directory / "site")
    only(faults(of_local(directory)), "versions", "kernelbroker is of version 0.0.9", "pip install")


def test_an_engine_that_is_stopped(directory: Path) -> None:
    """An engine that does not answer is found."""
    path = directory / "docker.sock"
    with socket.socket(socket.AF_UNIX) as stopped:
        stopped.bind(str(path))
    before = set(threading.enumerate())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # docker-py leaves a socket open
        found = faults(of_docker(directory, host=f"unix://{path}"))
        for each in set(threading.enumerate()) - before:
            each.join(5)
        gc.collect()
    only(found, "engine", "no container engine answers", "systemctl start docker")


@requires("docker")
def test_an_engine_that_lacks_something(directory: Path) -> None:
    """A missing image and a missing runtime are found; an engine with both is healthy."""
    assert faults(of_docker(directory)) == []
    only(faults(of_docker(directory, image="none-such")), "engine", "none-such", "make image")
    only(faults(of_docker(directory, runtime="kata")), "engine", "runtime kata", "daemon.json")


def test_a_setting_that_cannot_be_used(directory: Path) -> None:
    """What the broker would refuse at its start is found, once."""
    settings = of_local(directory, webhooks={"allowed_hosts": ["example.org"]})
    only(faults(settings), "settings", "webhooks.secret", "docs/configuration.md")
    settings = of_local(directory, local={"kernel_python": None})
    only(faults(settings), "settings", "kernel_python is not set", "kernels' environment")


# The command, as its users run it.


def run(
    *command: str | Path, environ: dict[str, str] | None = None, **settings: object
) -> tuple[int, dict[str, Any]]:
    """The exit status and the report of `kernelbroker doctor --json`."""
    own = {f"KERNELBROKER_{name}": str(value) for name, value in settings.items()}
    program = [sys.executable, "-m", "kernelbroker.cli", "doctor", "--json"]
    done = subprocess.run(
        [*command, *program],
        env=without_ours(os.environ) | own | (environ or {}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def bad(report: dict[str, Any]) -> list[dict[str, str]]:
    return [each for each in report["findings"] if each["level"] != "ok"]


@pytest.fixture
def healthy(directory: Path) -> dict[str, object]:
    return {
        "PORT": 0,
        "RUNTIME_FILE": directory / "broker.json",
        "LOCAL__KERNEL_PYTHON": KERNEL_PYTHON,
        "LOCAL__DATA_DIR": directory / "data",
        "LOCAL__RUN_DIR": directory / "run",
    }


@pytest.mark.sandbox
@requires("bubblewrap", "the kernels' environment")
def test_a_healthy_machine_with_jails(healthy: dict[str, object], directory: Path) -> None:
    """Nothing is found on a healthy machine, a cell runs in a jail, and nothing is left behind."""
    status, report = run(**healthy)
    assert (status, bad(report), report["status"]) == (0, [], "ok")
    tried = next(each for each in report["findings"] if each["check"] == "sandboxes")
    assert "a cell ran with isolation bubblewrap; bubblewrap " in tried["message"]
    assert "/rg" in tried["message"]
    assert [*(directory / "data").iterdir(), *(directory / "run").iterdir()] == []


@pytest.mark.sandbox
@requires("docker")
def test_a_healthy_machine_with_containers(healthy: dict[str, object], directory: Path) -> None:
    """A cell runs in a container."""
    own = {"DATA_DIR": directory / "data", "RUN_DIR": directory / "run", "IMAGE": IMAGE}
    docker = {f"DOCKER__{name}": value for name, value in {**own, "RUNTIME": "runc"}.items()}
    status, report = run(BACKEND="docker", **(healthy | docker))
    assert (status, bad(report)) == (0, [])
    assert [*(directory / "data").iterdir(), *(directory / "run").iterdir()] == []


@requires("root")
def test_rights_and_limits_that_are_missing(healthy: dict[str, object], directory: Path) -> None:
    """A token file that the user cannot read, and too few open files, are found in one run."""
    token = directory / "token"
    token.write_text("secret")
    os.chown(token, 12345, 12345)
    token.chmod(0o600)
    status, report = run(
        "prlimit",
        "--nofile=512:512",
        "setpriv",
        "--bounding-set=-dac_override,-dac_read_search",
        **healthy,
        TOKEN_FILE=token,
    )
    assert (status, report["status"]) == (1, "error")
    by_check = {each["check"]: each for each in bad(report)}
    assert "Permission denied" in by_check["tokens"]["message"]
    assert "chmod 600" in by_check["tokens"]["remedy"]
    assert "only 512 open files" in by_check["limits"]["message"]
    assert "LimitNOFILE" in by_check["limits"]["remedy"]


def test_programs_that_are_missing(healthy: dict[str, object], directory: Path) -> None:
    """Missing bubblewrap is found, and the kernels' environment without packages is."""
    programs = directory / "bin"
    programs.mkdir()
    for name in ("rm", "chmod"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    healthy |= {"LOCAL__BUBBLEWRAP": "no-such-program"}
    status, report = run(**healthy, environ={"PATH": str(programs)})
    (found_fault,) = bad(report)
    assert status == 1
    assert "bubblewrap is missing" in found_fault["message"]
    assert "apt-get install bubblewrap" in found_fault["remedy"]


@requires("bubblewrap")
@pytest.mark.parametrize("python", ["/usr/bin/python3", "/none/such"])
def test_an_environment_without_kernels(healthy: dict[str, object], python: str) -> None:
    """A Python without the kernels' packages is found, and one that does not exist."""
    status, report = run(**healthy | {"LOCAL__KERNEL_PYTHON": python})
    (found,) = bad(report)
    assert (status, found["check"]) == (1, "sandboxes")
    assert "requirements.txt" in found["remedy"]


def test_a_wrong_key(
    healthy: dict[str, object], directory: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A configuration that cannot be loaded is the only finding, also for people."""
    config = directory / "wrong.toml"
    config.write_text("prot = 1\n")
    assert cli.main(["doctor", "--config", str(config)]) == 1
    out = capfd.readouterr().out
    assert "prot: no such setting" in out
    assert "docs/configuration.md" in out
    assert "1 error, 0 warnings." in out
