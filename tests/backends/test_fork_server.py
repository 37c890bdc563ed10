"""Fork servers: launches, deaths, silence, replacement, and what the broker reports of them."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from kernelbroker_server.backends import fork_server, fork_servers, procfs
from kernelbroker_server.backends.base import EndCause, LaunchError, Limits, SandboxSpec
from kernelbroker_server.backends.fork_server import ForkServer, ForkServerError
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.backends.local_sandbox import LocalSandbox
from kernelbroker_server.backends.sandbox_layout import GATEWAY_COMMAND
from kernelbroker_server.kernels.requests import execute_request
from kernelbroker_server.pool.warm_sandbox import WarmSandbox, discard, launch, run_silently

from tests.support.nobody import run_as_nobody
from tests.support.requires import requires

from .brokers import other_broker
from .probes import DEADLINE_S, ask, end, running_backend, tell, until

pytestmark = [pytest.mark.sandbox, requires("bubblewrap", "the kernels' environment")]

MIB = 1024**2


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    async with running_backend(fork_server=True) as backend:
        yield backend


async def server_of(backend: LocalBackend) -> ForkServer:
    """The server of the default template."""
    assert backend.fork_servers is not None
    server = await backend.fork_servers.get(SandboxSpec(), backend._command)
    assert server is not None
    return server


def pid_of(server: ForkServer) -> int:
    """The pid of the server's Python, which is a child of bubblewrap."""
    table = procfs.processes()
    (pid,) = (pid for pid, entry in table.items() if entry.parent == server.pid)
    return pid


def condition(backend: LocalBackend) -> dict[str, Any]:
    """What `/health` says of the default template."""
    launches: Any = backend.describe()["launches"]
    found: dict[str, Any] = launches["default"]
    return found


def descriptors(pid: int | str = "self") -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


# Launches


async def test_sandboxes_are_forked(backend: LocalBackend) -> None:
    """All sandboxes of a template are forked from one server, also the first one."""
    for name in ("one", "two"):
        sandbox = await backend.launch(name, SandboxSpec())
        assert sandbox.forked
        source = "result = [os.getpid(), os.getuid(), os.getcwd()]"
        assert await ask(sandbox, source) == [3, 1000, "/data"]
    assert condition(backend) == {"by": "fork", "fork_server": "ready", "forks": 2, "failures": 0}


async def test_each_template_has_a_server(backend: LocalBackend) -> None:
    """Sandboxes with other variables come from another server, which had them at its imports."""
    spec = SandboxSpec(template="other", env={"MINE": "1"})
    other = await backend.launch("other", spec)
    default = await backend.launch("default", SandboxSpec())
    assert await ask(other, "result = os.environ.get('MINE')") == "1"
    assert await ask(default, "result = os.environ.get('MINE')") is None
    assert set(backend.describe()["launches"]) == {"default", "other"}  # type: ignore[call-overload]


async def test_limits_are_those_of_the_launch(backend: LocalBackend) -> None:
    """Sandboxes of one server have the limits of their own launch."""
    for files in (50, 300):
        spec = SandboxSpec(limits=Limits(open_files=files))
        sandbox = await backend.launch(f"with{files}", spec)
        source = "import resource; result = resource.getrlimit(resource.RLIMIT_NOFILE)"
        assert await ask(sandbox, source) == [files, files]
    assert condition(backend)["forks"] == 2


async def test_nothing_of_the_server_is_open(backend: LocalBackend) -> None:
    """A forked process has its standard streams, its listener and the connection, and nothing else."""
    sandbox = await backend.launch("one", SandboxSpec())
    source = "result = {n: os.readlink(f'/proc/self/fd/{n}') for n in ('0', '1', '2', '3', '4')}"
    opened = await ask(sandbox, source)
    kinds = [opened[str(number)].partition(":")[0] for number in range(5)]
    assert kinds[1:] == ["pipe", "pipe", "socket", "socket"]
    assert opened["1"] == opened["2"]
    listed = await ask(sandbox, "result = sorted(map(int, os.listdir('/proc/self/fd')))")
    assert listed == [0, 1, 2, 3, 4, 5]  # the last one is that of listdir


async def test_a_forked_kernel_runs_cells() -> None:
    """A forked gateway gives its kernel, forked as well, to the broker; cells run there."""
    async with running_backend(fork_server=True, command=GATEWAY_COMMAND) as backend:
        warm = await launch(backend, "one", SandboxSpec(imports=("json",)), DEADLINE_S)
        await run_silently(warm, "import os; open('/data/pid', 'w').write(str(os.getppid()))", {})
        assert (warm.sandbox.workspace / "pid").read_text() == "3"
        await discard(backend, warm.sandbox, warm.gateway)


async def test_a_server_is_confined(backend: LocalBackend) -> None:
    """A server has no capabilities, a filter of system calls, and namespaces of its own."""
    server = await server_of(backend)
    pid = pid_of(server)
    status = Path(f"/proc/{pid}/status").read_text()
    # What it may gain is not empty for root, but with `NoNewPrivs` it can gain nothing.
    for kind in ("Inh", "Prm", "Eff", "Amb"):
        assert f"Cap{kind}:\t{'0' * 16}" in status
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    for name in ("mnt", "net", "ipc", "uts"):
        assert Path(f"/proc/{pid}/ns/{name}").readlink() != Path(f"/proc/self/ns/{name}").readlink()
    assert Path(f"/proc/{pid}/root/data").is_dir()
    assert not Path(f"/proc/{pid}/root{Path(__file__)}").exists()


async def test_launches_leak_nothing(backend: LocalBackend) -> None:
    """Launches leave no descriptor open, neither in the broker nor in the server, and no zombie."""
    server = await server_of(backend)
    gc.collect()  # what earlier tests have left open
    before = descriptors(), descriptors(pid_of(server))
    for number in range(10):
        sandbox = await backend.launch(f"s{number}", SandboxSpec())
        if number % 2:
            await ask(sandbox, "pass")
            await tell(sandbox, "os._exit(1)")
            await end(sandbox)
        await backend.remove(sandbox)
    await until(lambda: (descriptors(), descriptors(pid_of(server))) == before)
    assert server.living == 0
    children = [p for p in procfs.processes().values() if p.parent == pid_of(server)]
    assert children == []


# Ends


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("os._exit(3)", "the kernel exited with status 3"),
        ("os.kill(os.getpid(), 9)", "the kernel was killed by SIGKILL"),
        ("os.kill(os.getpid(), 11)", "the kernel was killed by SIGSEGV"),
        ("os.kill(2, 9)", "the kernel was killed by SIGKILL"),  # the jail's holder
    ],
)
async def test_an_end_is_named(backend: LocalBackend, source: str, detail: str) -> None:
    """The exit status of a forked gateway determines the cause of its end."""
    sandbox = await backend.launch("one", SandboxSpec())
    await ask(sandbox, "pass")
    await tell(sandbox, source)
    ended = await end(sandbox)
    assert (ended.cause, ended.detail) == (EndCause.KERNEL_DIED, detail)


async def test_children_die_with_the_gateway(backend: LocalBackend) -> None:
    """Processes that a forked gateway started die with it, also in a process session of their own."""
    sandbox = await backend.launch("one", SandboxSpec())
    await ask(sandbox, "subprocess.Popen(['sleep', '1000'], start_new_session=True)")
    family = procfs.family(procfs.processes(), *sandbox.roots)
    assert len(family) == 4  # with the jail's first process and the holder
    await tell(sandbox, "os._exit(0)")
    await end(sandbox)
    await until(lambda: not family & procfs.processes().keys())


async def test_out_of_memory_by_watchdog(tmp_path: Path) -> None:
    """Without control groups the watchdog counts a forked gateway, which is no child of its jail."""
    async with running_backend(fork_server=True, cgroup_root=tmp_path) as backend:
        spec = SandboxSpec(limits=Limits(memory=100 * MIB))
        modest, greedy = [await backend.launch(name, spec) for name in ("modest", "greedy")]
        await ask(modest, "sys.held = b'x' * (60 << 20)")
        used = await modest.memory()
        assert used is not None
        assert 60 * MIB < used < 100 * MIB
        await tell(greedy, "held = bytearray(b'x') * (200 << 20); import time; time.sleep(1000)")
        assert (await end(greedy)).cause is EndCause.OUT_OF_MEMORY
        assert await ask(modest, "result = 1") == 1


# Failures of the server


async def test_a_dead_server_ends_no_sandbox(backend: LocalBackend) -> None:
    """Sandboxes survive their server's death. The next one is started, later ones are forked again."""
    survivor = await backend.launch("survivor", SandboxSpec())
    server = await server_of(backend)
    os.kill(pid_of(server), signal.SIGKILL)
    await asyncio.wait_for(server.closed, DEADLINE_S)
    plain = await backend.launch("plain", SandboxSpec())
    assert not plain.forked
    assert await ask(plain, "result = 1") == 1
    assert await ask(survivor, "result = 1") == 1
    assert condition(backend)["by"] == "start"
    assert condition(backend)["fork_server"] == "backing_off"
    assert condition(backend)["failures"] == 1
    await until(lambda: condition(backend)["by"] == "fork")
    assert (await backend.launch("forked", SandboxSpec())).forked
    await backend.remove(survivor)
    assert survivor.ended.done()


async def test_a_status_survives_the_server() -> None:
    """A gateway whose server is dead still tells the exit status of its kernel."""
    async with running_backend(fork_server=True, command=GATEWAY_COMMAND) as backend:
        warm = await launch(backend, "one", SandboxSpec(), DEADLINE_S)
        server = await server_of(backend)
        os.kill(pid_of(server), signal.SIGKILL)
        await asyncio.wait_for(server.closed, DEADLINE_S)
        await run_silently(warm, "alive = True", {})
        await run_last(warm, "import os; os._exit(7)")
        assert (await end(warm.sandbox)).detail == "the kernel exited with status 7"
        await discard(backend, warm.sandbox, warm.gateway)


async def run_last(warm: WarmSandbox, code: str) -> None:
    """Run a cell that ends the kernel."""
    await warm.channel.send(execute_request(code, {}))


async def test_a_silent_server_is_killed(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If the server does not answer, it is killed, and the sandbox is started without it."""
    monkeypatch.setattr(fork_server, "ANSWER_TIMEOUT_S", 0.2)
    survivor = await backend.launch("survivor", SandboxSpec())
    server = await server_of(backend)
    os.kill(pid_of(server), signal.SIGSTOP)
    plain = await backend.launch("plain", SandboxSpec())
    assert not plain.forked
    assert await ask(plain, "result = 1") == 1
    assert await ask(survivor, "result = 1") == 1
    assert "is started without its fork server: it did not answer within" in caplog.text
    await asyncio.wait_for(server.closed, DEADLINE_S)
    await until(lambda: condition(backend)["by"] == "fork")


async def test_a_stopped_server_holds_up_no_removal(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sandbox can be removed although its server is stopped and does not reap the gateway."""
    monkeypatch.setattr(fork_server, "ANSWER_TIMEOUT_S", 0.2)
    sandbox = await backend.launch("one", SandboxSpec())
    os.kill(pid_of(await server_of(backend)), signal.SIGSTOP)
    async with asyncio.timeout(DEADLINE_S):
        await backend.remove(sandbox)
    assert sandbox.ended.done()
    assert not sandbox.workspace.exists()


async def test_a_refusal_is_reported(backend: LocalBackend) -> None:
    """A jail that cannot be entered is reported with the reason, and the server goes on."""
    server = await server_of(backend)
    own = os.pidfd_open(os.getpid())
    with (
        socket.socket(socket.AF_UNIX) as listener,
        pytest.raises(ForkServerError, match="it refused: "),
    ):
        await server.fork(own, listener.fileno(), listener.fileno())
    assert server.living == 0
    assert (await backend.launch("one", SandboxSpec())).forked
    with socket.socket(socket.AF_UNIX) as listener:
        for _ in range(3):
            assert not server.closed.done()
            with pytest.raises(ForkServerError):
                await server.fork(own, listener.fileno(), listener.fileno())
    assert server.closed.done()  # it always refuses
    os.close(own)


async def test_a_gateway_without_limits_never_runs(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the limits of a forked gateway cannot be set, it ends at its gate, and the launch fails."""
    server = await server_of(backend)
    place, placed = LocalSandbox._place, list[int]()

    def place_one(self: LocalSandbox, pid: int) -> None:
        placed.append(pid)
        if len(placed) == 2:
            raise PermissionError("no limits")
        place(self, pid)

    monkeypatch.setattr(LocalSandbox, "_place", place_one)
    with pytest.raises(LaunchError, match="no limits"):
        await backend.launch("one", SandboxSpec())
    await until(lambda: not set(placed) & procfs.processes().keys())
    await until(lambda: server.living == 0)


async def test_failed_imports_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    """A server whose imports fail backs off. The log has the reason; sandboxes are started."""
    async with running_backend(fork_server=True, command=GATEWAY_COMMAND) as backend:
        spec = SandboxSpec(imports=("no_such_module",))
        sandbox = await backend.launch("one", spec)
        assert not sandbox.forked
        assert "ModuleNotFoundError: No module named 'no_such_module'" in caplog.text
        assert condition(backend)["fork_server"] == "backing_off"
        assert condition(backend)["failures"] >= 1


# Replacement


async def test_a_worn_server_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    """After its forks a server is replaced. It ends when the last of its sandboxes has ended."""
    monkeypatch.setattr(fork_server, "_LAST_FORK_S", 0.0)
    async with running_backend(fork_server=True, max_forks=2) as backend:
        first = await server_of(backend)
        sandboxes = [await backend.launch(name, SandboxSpec()) for name in ("one", "two")]
        assert backend.fork_servers is not None
        (template,) = backend.fork_servers._templates.values()
        await until(lambda: template.server is not first)
        assert backend.fork_servers.pids != [first.pid]
        third = await backend.launch("three", SandboxSpec())
        assert third.forked
        assert (await server_of(backend)).forks == 1
        assert condition(backend)["forks"] == 3
        assert not first.closed.done()
        for sandbox in sandboxes:
            assert await ask(sandbox, "result = 1") == 1
            await backend.remove(sandbox)
        await asyncio.wait_for(first.closed, DEADLINE_S)
        assert await ask(third, "result = 1") == 1


async def test_a_worn_server_is_not_used_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the next server cannot be started, the worn one forks as many again, and no more."""
    async with running_backend(fork_server=True, max_forks=1) as backend:
        await server_of(backend)
        assert backend.fork_servers is not None
        (template,) = backend.fork_servers._templates.values()

        async def fail() -> ForkServer:
            raise ForkServerError("no more")

        monkeypatch.setattr(template, "_start_server", fail)
        forked = [(await backend.launch(f"s{n}", SandboxSpec())).forked for n in range(3)]
        assert forked == [True, True, False]


async def test_templates_are_bounded(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sandboxes of more templates than there may be servers are started."""
    monkeypatch.setattr(fork_servers, "_MAX_TEMPLATES", 1)
    assert (await backend.launch("one", SandboxSpec())).forked
    other = await backend.launch("other", SandboxSpec(template="other", env={"MINE": "1"}))
    assert not other.forked


# The broker's end


async def test_everything_dies_with_the_broker() -> None:
    """The server and the sandboxes of a killed broker die."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        broker = await other_broker("local-fork", data, run)
        family = procfs.family(procfs.processes(), broker.pid) - {broker.pid}
        # The server and its bubblewrap; bubblewrap, the first process and the holder; the gateway.
        assert len(family) >= 6
        broker.kill()
        await broker.wait()
        await until(lambda: not family & procfs.processes().keys())
        async with running_backend(data_dir=data, run_dir=run):
            pass  # it asserts that nothing is left


async def test_stop_ends_the_server() -> None:
    """No process of a server is left after the backend's stop."""
    async with running_backend(fork_server=True) as backend:
        server = await server_of(backend)
        family = procfs.family(procfs.processes(), server.pid)
        assert len(family) == 2
        await backend.launch("one", SandboxSpec())
        await backend.stop()
        await until(lambda: not family & procfs.processes().keys())


# As an ordinary user

ORDINARY = """
import asyncio, json, tempfile
from pathlib import Path
from kernelbroker_server.backends.base import Limits, SandboxSpec
from kernelbroker_server.backends.local import LocalBackend
from tests.backends.probes import FORKS, PROBE, ask

async def main():
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        backend = LocalBackend(kernel_python=Path("/usr/bin/python3"), require_isolation=True,
                               data_dir=Path(directory, "data"), run_dir=Path(directory, "run"),
                               command=PROBE, fork_server=True)
        await backend.start()
        sandbox = await backend.launch("one", SandboxSpec(limits=Limits(processes=20)))
        status = await ask(sandbox, "result = open('/proc/self/status').read()")
        forks = await ask(sandbox, FORKS)
        paths = ["/x", "/etc/x", "/dev/x", "/usr/x"]
        writes = await ask(sandbox, "result = [attempt(open, p, 'w') for p in paths]", paths=paths)
        unshare = await ask(sandbox, "result = attempt(syscall, 272, 0x10000000)")
        memory, forked = await sandbox.memory(), sandbox.forked
        await backend.remove(sandbox)
        await backend.stop()
        print(json.dumps([status, forks, writes, unshare, memory, forked]))

asyncio.run(main())
"""


@requires("root")
async def test_ordinary_user() -> None:
    """A broker that is not root forks into jails without capabilities, with uid 1000."""
    status, forks, writes, unshare, memory, forked = await run_as_nobody(ORDINARY)
    assert forked
    assert "Uid:\t1000\t1000\t1000\t1000" in status
    assert [line.split()[1] for line in status.splitlines() if line[:3] == "Cap"] == ["0" * 16] * 5
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert forks[1] == "EAGAIN"
    assert forks[0] < 20
    assert writes == ["EROFS"] * 4
    assert unshare == "EPERM"
    assert 0 < memory < 100 * MIB
