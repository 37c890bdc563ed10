"""For each backend a broker, a session that attempts to escape, and a session beside it."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kernelbroker.sync
import pytest
from kernelbroker_server import app

from tests.backends.probes import BACKENDS, LOCAL_FORK
from tests.e2e.support import HOST_SECRET, BrokerProcess, backend_settings, running_broker

from .attempts.prelude import prelude

MIB = 1024**2
LIMITS = {"memory": 300 * MIB, "processes": 60, "tmp_size": 8 * MIB, "open_files": 300}

NEIGHBOUR = """
import ctypes, os, socket, subprocess, sys  # used by later cells as well
for folder in ("/data", "/tmp", "/dev/shm", "/home/sandbox"):
    open(f"{folder}/{needle}", "w").close()
abstract = socket.socket(socket.AF_UNIX)
abstract.bind("\\0" + needle)
abstract.listen()
port = socket.create_server(("127.0.0.1", 0))
sleeper = subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()", needle])
assert ctypes.CDLL(None).shmget(4711, 4096, 0o1666) >= 0
verdict = port.getsockname()[1]"""


@dataclass(frozen=True, slots=True)
class World:
    """A broker with a backend of this kind, and the facts that an attacker might know of its host."""

    kind: str
    broker: BrokerProcess
    client: kernelbroker.sync.Broker
    neighbour: kernelbroker.sync.Session
    facts: dict[str, Any]


class Inside:
    """A session whose cells have the `prelude`."""

    def __init__(self, world: World, session: kernelbroker.sync.Session) -> None:
        self.session = session
        self._prelude = prelude(world.facts)
        self.prepare()

    def prepare(self) -> None:
        """Run the prelude in a new kernel."""
        assert self.verdicts(self._prelude) == ["ready"]

    def verdicts(self, code: str) -> list[Any]:
        """Run a cell. Returns its `verdict` as a list; `ended` if it or the last one ended the sandbox."""
        result = self.session.run(code, result_var="verdict")
        if result.kernel_restarted and code != self._prelude:
            self.prepare()
            return ["ended"]
        assert result.success, result.error_detail
        value = result.return_value
        return value if isinstance(value, list) else [value]


@pytest.fixture(scope="session", params=[LOCAL_FORK, *BACKENDS[1:]])
def kind(request: pytest.FixtureRequest) -> str:
    """The kind of backend, as brokers have it by default. Tests request others by indirect parameters."""
    return str(request.param)


@pytest.fixture(scope="session")
def world(kind: str) -> Iterator[World]:
    settings: dict[str, Any] = {f"SANDBOX__{name.upper()}": size for name, size in LIMITS.items()}
    settings |= {**backend_settings(kind), "POOL__MIN_SIZE": 2, "POOL__MAX_SIZE": 8}
    settings["LIMITS__CONTEXTS"] = 0  # the limit of processes has no room for them
    with (
        running_broker(POOL__ACQUIRE_TIMEOUT=60, **settings) as broker,
        kernelbroker.sync.connect(broker.url, broker.token) as client,
        client.session(idle_timeout=6 * 3600) as neighbour,
        socket.socket(socket.AF_UNIX) as listener,
    ):
        host_socket = f"kernelbroker-{secrets.token_hex(8)}"
        listener.bind(f"\0{host_socket}")
        listener.listen()
        facts = _facts(broker, neighbour) | {"host_socket": host_socket}
        yield World(kind, broker, client, neighbour, facts)
        assert neighbour.run("sleeper.kill(); sleeper.wait()").success


@pytest.fixture(scope="session")
def inside(world: World) -> Iterator[Inside]:
    """A sandbox that all harmless attempts share."""
    with world.client.session() as session:
        yield Inside(world, session)


@pytest.fixture
def doomed(world: World) -> Iterator[Inside]:
    """A sandbox for an attempt that may end it."""
    with world.client.session() as session:
        yield Inside(world, session)


def _facts(broker: BrokerProcess, neighbour: kernelbroker.sync.Session) -> dict[str, Any]:
    needle = f"needle-{secrets.token_hex(8)}"
    result = neighbour.run(f"needle = {needle!r}\n{NEIGHBOUR}", result_var="verdict")
    assert result.success, result.error_detail
    (broker_id,) = broker.broker_ids()
    addresses = {
        info[4][0] for info in socket.getaddrinfo(socket.gethostname(), 80, socket.AF_INET)
    }
    return LIMITS | {
        "needle": needle,
        "neighbour_port": result.return_value,
        "broker_pid": broker.pid,
        "broker_port": urlsplit(broker.url).port,
        "runtime_file": str(broker.runtime_file),
        "source": str(Path(app.__file__)),
        "data_dir": str(broker.data_dir),
        "run_dir": str(broker.run_dir),
        "workspaces": [str(path) for path in (broker.data_dir / broker_id / "sandboxes").iterdir()],
        "sockets": [str(path) for path in (broker.run_dir / broker_id).glob("*.sock")],
        "files": [str(Path(__file__)), "/root/.bashrc", "/etc/ssh", "/etc/docker", "/boot/config"],
        "engine_socket": os.environ.get("DOCKER_HOST", "unix:///run/docker.sock")[len("unix://") :],
        "host_addresses": sorted(
            {"172.17.0.1", *(address for address in addresses if not address.startswith("127."))}
        ),
        "secrets": [
            [len(secret), hashlib.sha256(secret.encode()).hexdigest()]
            for secret in (broker.token, HOST_SECRET)
        ],
    }
