"""A broker in a separate process, as its users run it, and helpers for its tests.

The helpers poll conditions, send raw HTTP, and read the remaining processes and mounts from /proc and /sys.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import inspect
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import pytest
from kernelbroker_server.backends import procfs

from tests.backends.probes import assert_no_pods, containers_of
from tests.support.requires import (
    IMAGE,
    KERNEL_PYTHON,
    KUBECONFIG,
    gvisor_runtime,
    require,
    requires,
)

ROOT = Path(__file__).parents[2]
DEADLINE_S = 60.0
"""For what should take a second: a busy machine is no failure."""

HOST_SECRET = secrets.token_hex(16)
"""In the environment of each broker; no cell may find it."""
STORE = (
    ".state",
    ".workspaces",
    "workspaces",
    ".checkpoints",
    ".kernelbroker",
    ".kubernetes-id",
    ".reserve",
    ".store-id",
)
"""Below data_dir: results and files stay there when all else of the broker has gone."""
GRACE_S = 3
"""What a cell has to react to its interrupt."""
_PIECE_BYTES = 1024**2

whole_system = [pytest.mark.sandbox, requires("bubblewrap", "the kernels' environment")]

LOOP_UNTIL_INTERRUPTED = """
import time
print("the cell runs", flush=True)
for _ in range(6000):
    time.sleep(0.01)
"""


def backend_settings(kind: str) -> dict[str, object]:
    """The settings of a broker whose sandboxes are of this kind.

    The kinds are local, local-fork, docker, gvisor and kubernetes.
    """
    if kind == "kubernetes":
        # The cluster of the tests enforces no policies.
        allowed = {"KUBERNETES__REQUIRE_NETWORK_POLICIES": False}
        return {"BACKEND": kind, "KUBERNETES__KUBECONFIG": KUBECONFIG} | allowed
    if kind.startswith("local"):
        return {"BACKEND": "local", "LOCAL__FORK_SERVER": kind == "local-fork"}
    return {
        "BACKEND": "docker",
        "DOCKER__RUNTIME": gvisor_runtime() if kind == "gvisor" else "runc",
    }


Measured: TypeAlias = Callable[..., None]
"""Records durations in seconds under a name; they are printed at the end of the test run."""


class BrokerProcess:
    """`kernelbroker-server` in directories of its own. `start` it, then `stop` or `kill` it.

    Args:
        directory: holds all that it writes; short, since sockets lie in it.
        settings: its settings, by the names of their environment variables without the prefix.
        within: a command that becomes what follows it, to start the broker by.
    """

    def __init__(self, directory: Path, within: Sequence[str] = (), **settings: object) -> None:
        self.data_dir, self.run_dir = directory / "data", directory / "run"
        self.runtime_file = directory / "client" / "broker.json"
        self.log = directory / "broker.log"
        self.url = self.token = ""
        self._settings = settings
        self._within = within
        self._process: subprocess.Popen[bytes] | None = None

    @contextlib.contextmanager
    def running(self) -> Iterator[BrokerProcess]:
        """It runs in the block, and must then stop in order and leave nothing."""
        try:
            yield self.start()
            self.stop_in_order()
        finally:
            self.kill()

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the broker, with its settings."""
        settings = {
            "PORT": 0,
            "RUNTIME_FILE": self.runtime_file,
            "LOCAL__KERNEL_PYTHON": KERNEL_PYTHON,
            "LOCAL__DATA_DIR": self.data_dir,
            "LOCAL__RUN_DIR": self.run_dir,
            "LOCAL__REQUIRE_ISOLATION": "true",
            "DOCKER__IMAGE": IMAGE,
            "DOCKER__RUNTIME": "runc",  # `auto` may find gVisor, which is slower
            "DOCKER__DATA_DIR": self.data_dir,
            "DOCKER__RUN_DIR": self.run_dir,
            "KUBERNETES__IMAGE": IMAGE,
            "KUBERNETES__IMAGE_PULL_POLICY": "Never",
            "KUBERNETES__DATA_DIR": self.data_dir,
            "POOL__MIN_SIZE": 1,
            "SHUTDOWN": "close",  # nothing may be left, whatever the signal
            "SANDBOX__IMPORTS": "[]",  # cells import what they need; a sandbox takes half as long
            "SESSIONS__INTERRUPT_GRACE": GRACE_S,
        } | self._settings
        return (
            without_ours(os.environ)
            | {"HOST_SECRET": HOST_SECRET}
            | {f"KERNELBROKER_{name}": str(value) for name, value in settings.items()}
        )

    def start(self, *options: str) -> BrokerProcess:
        """Start it with these options, and wait until clients can find it.

        Skips the test that runs on a machine without jails, if the broker must have them.
        """
        local = self._settings.get("BACKEND", "local") == "local"
        if local and self._settings.get("LOCAL__REQUIRE_ISOLATION") is None:
            require("bubblewrap", "the kernels' environment")
        self.runtime_file.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*self._within, sys.executable, "-m", "kernelbroker_server", *options],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + 2 * DEADLINE_S
        while not self.runtime_file.exists():
            assert self._process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.02)
        found = json.loads(self.runtime_file.read_text())
        self.url, self.token = found["url"], found["token"]
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send it the signal, and wait for its end; returns the exit status."""
        assert self._process is not None
        self._process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        """Wait for its end; returns the exit status."""
        assert self._process is not None
        return self._process.wait(DEADLINE_S)

    def kill(self) -> None:
        """Kill the broker without a chance to clean up."""
        if self._process is not None and self._process.poll() is None:
            self.stop(signal.SIGKILL)

    @property
    def client_environ(self) -> dict[str, str]:
        """The environment of a client that finds the broker only by its runtime file."""
        return without_ours(os.environ) | {"KERNELBROKER_RUNTIME_FILE": str(self.runtime_file)}

    def family(self) -> set[int]:
        """The pids of all its descendants."""
        return procfs.family(procfs.processes(), self.pid) - {self.pid}

    def stop_in_order(self) -> None:
        """Stop it; nothing of it may be left, and nothing that it complained of."""
        broker_ids = self.broker_ids()
        assert self.stop() == 0
        assert self.remains(broker_ids) == []
        if self._settings.get("BACKEND") == "docker":
            assert containers_of(self.data_dir) == []
        if self._settings.get("BACKEND") == "kubernetes":
            assert_no_pods(self.data_dir)
        assert self.complaints() == [], self.log.read_text(errors="replace")

    def broker_ids(self) -> list[str]:
        """Of the broker that runs, and of dead ones that left something behind."""
        return [path.name for path in self.data_dir.iterdir() if path.name not in STORE]

    def remains(self, broker_ids: list[str]) -> list[str]:
        """What there is of these brokers: directories, sockets, control groups, processes."""
        data = [path for path in self.data_dir.iterdir() if path.name not in STORE]
        found = [*data, *self.run_dir.glob("*"), *cgroups(broker_ids)]
        return [*map(str, found), *(f"pid {p}" for p in procfs.started_in(self.data_dir))]

    def sandboxes(self) -> dict[str, list[str]]:
        """What there is of each kind, by name: it should be the same sandboxes everywhere."""
        (broker_id,) = self.broker_ids()
        groups = {
            path.name for group in cgroups([broker_id]) for path in group.iterdir() if path.is_dir()
        }
        sandboxes = self.data_dir / broker_id / "sandboxes"
        return {
            "directories": sorted(path.name for path in sandboxes.iterdir()),
            "sockets": sorted(path.stem for path in (self.run_dir / broker_id).glob("*.sock")),
            "cgroups": sorted(groups),
        }

    def complaints(self) -> list[str]:
        """Lines of its log that report a fault of the broker."""
        signs = (" ERROR ", "CRITICAL", "Traceback", "was never", "Warning:")
        lines = self.log.read_text(errors="replace").splitlines()
        return [line for line in lines if any(sign in line for sign in signs)]


@contextlib.contextmanager
def running_broker(**settings: object) -> Iterator[BrokerProcess]:
    """A broker with these settings, in directories that go with it; it must end in order."""
    with (
        tempfile.TemporaryDirectory(prefix="kb-") as directory,
        BrokerProcess(Path(directory), **settings).running() as broker,
    ):
        yield broker


def free_port() -> int:
    """A port that nobody listens on now, for a broker that must keep it."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port: int = free.getsockname()[1]
        return port


def without_ours(environ: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if not k.startswith("KERNELBROKER_")}


def cgroups(broker_ids: list[str]) -> list[Path]:
    ours = {f"kernelbroker-{name}" for name in broker_ids}
    walk = os.walk("/sys/fs/cgroup")  # not `glob`: groups of others come and go meanwhile
    return [Path(where, name) for where, names, _ in walk for name in names if name in ours]


async def until(
    condition: Callable[[], Any],
    what: Callable[[], object] | str = "",
    deadline: float = DEADLINE_S,
) -> Any:
    """Poll a condition of other processes. Returns its value.

    `condition` may return an awaitable. If it raises AssertionError, it is not met yet.
    """
    end = time.monotonic() + deadline
    while True:
        try:
            value = condition()
            if value := await value if inspect.isawaitable(value) else value:
                return value
            problem: object = what() if callable(what) else what
        except AssertionError as error:
            problem = error
        assert time.monotonic() < end, f"not within {deadline:g} s: {problem}"
        await asyncio.sleep(0.02)


# Raw HTTP, in a thread: what curl would see, and when.


class Response:
    """An answer that is read while it comes."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = response.headers
        self.received = bytearray()

    async def more(self) -> bytes:
        """The next piece; empty at the end."""
        async with asyncio.timeout(DEADLINE_S):
            data = await asyncio.to_thread(self._response.read1, _PIECE_BYTES)
        self.received += data
        return data

    async def until_seen(self, text: bytes) -> None:
        while text not in self.received:
            assert await self.more(), f"{text!r} is not in {self.received!r}"

    async def rest(self) -> bytes:
        """All of it, from the beginning."""
        while await self.more():
            pass
        return bytes(self.received)


@contextlib.asynccontextmanager
async def opened(
    broker: BrokerProcess,
    method: str,
    path: str,
    body: object = None,
    accept: str = "*/*",
    **headers: str,
) -> AsyncIterator[Response]:
    """A request whose answer is read in the block; leaving it hangs up."""
    parts = urlsplit(broker.url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=DEADLINE_S)
    content = None if body is None else json.dumps(body)
    sent = {"Authorization": f"Bearer {broker.token}", "Accept": accept} | headers

    def ask() -> http.client.HTTPResponse:
        connection.request(method, path, content, sent)
        return connection.getresponse()

    try:
        response = await asyncio.to_thread(ask)
        with response:
            yield Response(response)
    finally:
        connection.close()


async def call(
    broker: BrokerProcess, method: str, path: str, body: object = None, **options: str
) -> tuple[int, Any]:
    """Status and JSON of a call."""
    async with opened(broker, method, path, body, **options) as response:
        text = await response.rest()
        return response.status, json.loads(text) if text else None
