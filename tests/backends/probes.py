"""Real sandboxes with a small program in place of the gateway: it runs the Python that a test sends."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.base import Sandbox, SandboxEnd
from kernelbroker_server.backends.container_options import LABEL_DATA
from kernelbroker_server.backends.docker import DockerBackend
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.backends.pod_manifest import PodSettings
from kernelbroker_server.backends.sandbox_layout import GATEWAY_COMMAND
from kernelbroker_server.backends.startup_check import CheckFailed
from kernelbroker_server.kernels.endpoint import TcpEndpoint, UnixEndpoint

from tests.support.requires import IMAGE, KERNEL_PYTHON, KUBECONFIG, engine, requires

if TYPE_CHECKING:
    from kernelbroker_server.backends.kubernetes import KubernetesBackend

DEADLINE_S = 60.0

PROBE = (
    "-c",
    """
import ctypes, errno, json, os, socket, subprocess, sys, traceback

libc = ctypes.CDLL(None, use_errno=True)

def attempt(call, *args, **kwargs):
    "The name of the error with which a call fails, or what it returned."
    try:
        value = call(*args, **kwargs)
    except OSError as error:
        return errno.errorcode.get(error.errno, str(error))
    return "done" if value is None else f"done: {value!r}"

def syscall(number, *args):
    args = [ctypes.c_long(arg) if isinstance(arg, int) else arg for arg in args]
    if libc.syscall(ctypes.c_long(number), *args) == -1:
        raise OSError(ctypes.get_errno(), "")

def shell(line):
    done = subprocess.run(line, shell=True, capture_output=True, text=True)
    return done.stdout + done.stderr

how, where = sys.argv[1:3]
if how == "--handover":
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(where)
    def accept():
        "The next connection; the broker hands each one over."
        data, descriptors, _, _ = socket.recv_fds(channel, 1, 1)
        return socket.socket(fileno=descriptors[0]) if data else sys.exit("the broker has died")
else:
    if how == "--tcp":
        host, port = where.rsplit(":", 1)
        where = socket.create_server((host, int(port)), backlog=64).detach()
    listener = socket.socket(fileno=int(where))
    os.set_inheritable(listener.fileno(), False)
    def accept():
        return listener.accept()[0]
while True:
    connection = accept()
    names = dict(globals())
    text = b""
    # Over TLS it begins with a head, and ends with a zero, since no single side can be closed.
    while not text.endswith(b"\\0") and (data := connection.recv(65536)):
        text += data
    source = text.rstrip(b"\\0").decode()
    try:
        exec(source.partition("\\r\\n\\r\\n")[2] if source.startswith("GET ") else source, names)
        answer = {"result": names.get("result")}
    except Exception:
        answer = {"error": traceback.format_exc()}
    try:
        connection.sendall(json.dumps(answer).encode())
    except OSError:
        pass  # nobody waits any more
    connection.close()
""",
)

FORKS = """
children = []
try:
    while len(children) < 100:
        if (pid := os.fork()) == 0:
            os.read(os.pipe()[0], 1)
        children.append(pid)
except OSError as error:
    result = [len(children), errno.errorcode[error.errno]]
for pid in children:
    os.kill(pid, 9)
    os.waitpid(pid, 0)"""
"""To be asked: how many children there may be, up to 100, and the error of one more."""


async def connect(sandbox: Sandbox) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    match sandbox.endpoint:
        case UnixEndpoint(path=path):
            return await asyncio.open_unix_connection(str(path))
        case TcpEndpoint(host=host, port=port, tls=tls):
            return await asyncio.open_connection(host, port, ssl=tls)


async def connect_probe(sandbox: Sandbox) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect to `PROBE`, past what checks the token of a connection over TLS."""
    reader, writer = await connect(sandbox)
    if not writer.can_write_eof():
        assert isinstance(sandbox.endpoint, TcpEndpoint)
        writer.write(
            f"GET / HTTP/1.1\r\nAuthorization: token {sandbox.endpoint.token}\r\n\r\n".encode()
        )
    return reader, writer


def _end_source(writer: asyncio.StreamWriter) -> None:
    if writer.can_write_eof():
        writer.write_eof()
    else:
        writer.write(b"\0")


async def ask(sandbox: Sandbox, source: str, **values: Any) -> Any:
    """Run Python in the sandbox with these variables. Returns the value of `result`."""
    reader, writer = await connect_probe(sandbox)
    try:
        names = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        writer.write((names + source).encode())
        _end_source(writer)
        async with asyncio.timeout(DEADLINE_S):
            answer = json.loads(await reader.read())
    finally:
        writer.close()
        await writer.wait_closed()
    if "error" in answer:
        raise AssertionError(answer["error"])
    return answer["result"]


async def run_cell(sandbox: Sandbox, code: str, timeout: float) -> str:
    """Replaces the cell at startup, if `PROBE` replaces the gateway."""
    capture = "import contextlib, io\nwith contextlib.redirect_stdout(io.StringIO()) as out:\n"
    source = f"{capture}    exec({code!r})\nresult = out.getvalue()"
    try:
        async with asyncio.timeout(timeout):
            return str(await ask(sandbox, source))
    except (OSError, ValueError, AssertionError) as error:
        end = sandbox.ended.result() if sandbox.ended.done() else None
        raise CheckFailed(str(error) if end is None else end.detail) from error


async def no_check(_sandbox: Sandbox, code: str, _timeout: float) -> str:
    """Replaces `run_cell` if the command is not expected to work."""
    return json.dumps([False] * code.count("', "))


async def tell(sandbox: Sandbox, source: str) -> None:
    """Run Python in the sandbox that dies before it answers."""
    _, writer = await connect_probe(sandbox)
    writer.write(source.encode())
    _end_source(writer)
    await writer.drain()
    writer.close()
    await writer.wait_closed()


async def end(sandbox: Sandbox) -> SandboxEnd:
    async with asyncio.timeout(DEADLINE_S):
        return await asyncio.shield(sandbox.ended)


async def until(condition: Callable[[], Any]) -> None:
    """Poll a condition of other processes, which send no events."""
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.01)


@asynccontextmanager
async def running_docker(**options: Any) -> AsyncIterator[DockerBackend]:
    """A started docker backend in temporary directories. Checks that nothing is left after it stops."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        settings: dict[str, Any] = {
            "image": IMAGE,
            "data_dir": Path(directory, "data"),
            "run_dir": Path(directory, "run"),
            "runtime": "runc",  # `auto` may find gVisor, which is slower
            "command": PROBE,
        } | options
        if tuple(settings["command"])[: len(GATEWAY_COMMAND)] != tuple(GATEWAY_COMMAND):
            settings = {"run_cell": run_cell} | settings
        data, run = settings["data_dir"], settings["run_dir"]
        backend = DockerBackend(**settings)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.stop()
            assert [*data.iterdir(), *run.iterdir()] == []
            for left_of in (containers_of, networks_of):  # in a thread: our loop may pass it on
                assert await asyncio.to_thread(left_of, data, options.get("host")) == []


def containers_of(data: Path, host: str | None = None) -> list[str]:
    """The names of the containers of the brokers with this `data_dir`."""
    with engine(host) as api:
        found = api.containers(all=True, filters={"label": f"{LABEL_DATA}={data}"})
    return [container["Names"][0].removeprefix("/") for container in found]


def container_of(sandbox: Sandbox, host: str | None = None) -> str:
    """The name of the sandbox's container."""
    names = containers_of(sandbox.workspace.parents[3], host)
    (name,) = (name for name in names if name.endswith(f"-{sandbox.id}"))
    return name


def networks_of(data: Path, host: str | None = None) -> list[str]:
    """The networks of the brokers with this `data_dir`."""
    with engine(host) as api:
        found = api.networks(filters={"label": f"{LABEL_DATA}={data}"})
    return [network["Name"] for network in found]


engines_are_away = [
    # If no engine listens, docker-py leaves its socket to the garbage collector.
    pytest.mark.usefixtures("engines_that_are_away"),
    pytest.mark.filterwarnings(
        r"ignore:Exception ignored in. <socket.socket fd=\d+, family=1, type=1, proto=0>"
        ":pytest.PytestUnraisableExceptionWarning"
    ),
]
"""For modules whose engines stop, or never were."""


@asynccontextmanager
async def running_backend(**options: Any) -> AsyncIterator[LocalBackend]:
    """A started local backend in temporary directories. Checks that nothing is left after it stops."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:  # short: sockets lie in it
        settings: dict[str, Any] = {
            "kernel_python": KERNEL_PYTHON,
            "data_dir": Path(directory, "data"),
            "run_dir": Path(directory, "run"),
            "require_isolation": True,
            "command": PROBE,
        } | options
        data, run = settings["data_dir"], settings["run_dir"]
        backend = LocalBackend(**settings)
        await backend.start()
        groups = cgroups_of(data)
        try:
            yield backend
        finally:
            await backend.stop()
            left = [*data.iterdir(), *run.iterdir(), *filter(Path.exists, groups)]
            assert left == []
            assert procfs.started_in(data) == []


@asynccontextmanager
async def running_kubernetes(**options: Any) -> AsyncIterator[KubernetesBackend]:
    """A started backend of Pods, in a temporary directory. Checks that nothing is left after it stops."""
    # Its library takes seconds to import, which few tests need.
    from kernelbroker_server.backends.kubernetes import KubernetesBackend

    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        options.pop("run_dir", None)
        settings: dict[str, Any] = {
            "settings": POD_SETTINGS,
            "kubeconfig": KUBECONFIG,
            "require_policies": False,  # the cluster of the tests enforces none
            "data_dir": Path(directory, "data"),
            "command": PROBE,
        } | options
        if tuple(settings["command"])[: len(GATEWAY_COMMAND)] != tuple(GATEWAY_COMMAND):
            settings = {"run_cell": run_cell} | settings
        data = settings["data_dir"]
        backend = KubernetesBackend(**settings)
        await backend.start()
        try:
            yield backend
        finally:
            await backend.stop()
            assert [path for path in data.iterdir() if path.name != ".kubernetes-id"] == []
            await asyncio.to_thread(assert_no_pods, data)


def kubectl(*words: str) -> str:
    """The output of kubectl; its program is beside those of the cluster."""
    assert KUBECONFIG is not None
    program = KUBECONFIG.parents[1] / "bundle/bin/kubectl"
    command = [program if program.exists() else "kubectl", "--kubeconfig", KUBECONFIG, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def pods_of(data: Path) -> list[str]:
    """The names of the Pods and Secrets of the brokers with this `data_dir`."""
    label = f"kernelbroker.io/data={(data / '.kubernetes-id').read_text()}"
    return kubectl("get", "pods,secrets", "-A", "-l", label, "-o", "name").split()


def assert_no_pods(data: Path) -> None:
    """The brokers with this `data_dir` have left nothing; the cluster removes Secrets after their Pods."""
    deadline = time.monotonic() + DEADLINE_S
    while left := pods_of(data):
        assert time.monotonic() < deadline, left
        time.sleep(0.2)


def cgroups_of(data: Path) -> list[Path]:
    """The control groups of the brokers with this `data_dir`."""
    names = [path.name for path in data.iterdir() if not path.name.startswith(".")]
    root = Path("/sys/fs/cgroup")
    wanted = {f"kernelbroker-{name}" for name in names}
    # Not `glob`, which fails if an engine removes the group of a container meanwhile.
    return [
        Path(directory, child)
        for directory, children, _ in os.walk(root)
        for child in children
        if child in wanted
    ]


POD_SETTINGS = PodSettings(image=IMAGE, image_pull_policy="Never")

BACKENDS = [
    pytest.param("local", marks=requires("bubblewrap", "the kernels' environment")),
    pytest.param("docker", marks=requires("docker")),
]
"""The kinds of them, as parameters of tests."""
JAILS_FIRST = [
    BACKENDS[0],
    pytest.param("docker", marks=[requires("docker"), pytest.mark.long]),
]
"""The same, for what differs little: containers only in the whole tests."""
LOCAL_FORK = pytest.param("local-fork", marks=requires("bubblewrap", "the kernels' environment"))
"""The local backend whose gateways are forked: for what depends on how a gateway comes into its jail."""
KUBERNETES = pytest.param("kubernetes", marks=requires("cluster"))
"""Pods of a real cluster, over TLS."""
ON_GVISOR = pytest.param("gvisor", marks=requires("docker", "gvisor"))
"""The docker backend with gVisor, over unix sockets: for what depends on the runtime."""
PROJECT_BACKENDS = [
    BACKENDS[0],
    pytest.param("docker", marks=requires("the image for projects")),
    pytest.param("gvisor", marks=requires("the image for projects", "gvisor")),
]
"""As BACKENDS, for tests of projects, whose containers have CODE_IMAGE; and gVisor."""
