"""The local backend with real jails and processes, from launch to removal."""

# ruff: noqa: ASYNC220, ASYNC240 - a test may block its event loop

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from kernelbroker_kernel.contract import EXIT_GATEWAY_FAILED
from kernelbroker_server import supervisor as supervisor_module
from kernelbroker_server.backends import procfs, programs, seccomp
from kernelbroker_server.backends.base import (
    BackendUnavailable,
    EndCause,
    Isolation,
    Limits,
    SandboxEnd,
    SandboxSpec,
)
from kernelbroker_server.backends.exit_reason import end_of
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.backends.sandbox_layout import GATEWAY_COMMAND, python_environment
from kernelbroker_server.kernels.endpoint import UnixEndpoint
from kernelbroker_server.supervisor import Supervisor

from tests.support.nobody import run_as_nobody
from tests.support.requires import KERNEL_PYTHON, requires
from tests.support.waiting import cancelled_at

from .brokers import running
from .probes import (
    DEADLINE_S,
    LOCAL_FORK,
    PROBE,
    ask,
    cgroups_of,
    end,
    running_backend,
    tell,
    until,
)

pytestmark = [pytest.mark.sandbox, requires("bubblewrap", "the kernels' environment")]

MIB = 1024**2


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


# Launch and remove


@requires("root")
async def test_jails_share_one_host_user(backend: LocalBackend) -> None:
    """As root, code in all jails runs as the same unprivileged user of the host."""
    one, two = [await backend.launch(name, SandboxSpec()) for name in ("one", "two")]
    await ask(one, "open('/data/mine', 'w')")
    (one.workspace / "mine").rename(two.workspace / "mine")
    assert await ask(two, "open('/data/mine', 'a').close(); result = os.listdir('/data')") == [
        "mine"
    ]
    assert (two.workspace / "mine").stat().st_uid == 200_000


async def test_output_without_end_does_no_harm(backend: LocalBackend) -> None:
    """Endless output of a gateway costs little CPU time, and the broker keeps its end."""
    sandbox = await backend.launch("one", SandboxSpec())
    await tell(sandbox, "os.write(2, b'x' * 10_000_000); os.write(2, b'the end')")
    begun = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - begun < 0.25
    assert len(sandbox.output_tail()) == 8192
    await backend.remove(sandbox)


async def test_too_long_a_socket_path(tmp_path: Path) -> None:
    """A directory whose path is too long for a socket is reported."""
    with pytest.raises(BackendUnavailable, match="shorter run_dir"):
        async with running_backend(run_dir=tmp_path / ("long" * 25)):
            pass


# Ends


async def test_an_end_is_known_at_once(backend: LocalBackend) -> None:
    """A sandbox has ended a few milliseconds after the death of its gateway."""
    took = []
    for name in ("one", "two", "three", "four"):  # a busy machine may delay some
        sandbox = await backend.launch(name, SandboxSpec())
        assert await ask(sandbox, "result = os.getpid()") == 2
        assert sandbox.leader is not None
        gateway = min(procfs.family(procfs.processes(), sandbox.leader) - {sandbox.leader})
        os.kill(gateway, signal.SIGKILL)
        begun = time.perf_counter()
        assert (await end(sandbox)).cause is EndCause.KERNEL_DIED
        took.append(time.perf_counter() - begun)
    assert min(took) < 0.1


async def test_children_die_with_the_gateway(backend: LocalBackend) -> None:
    """Processes that the gateway started die with it, also in a process session of their own."""
    sandbox = await backend.launch("one", SandboxSpec())
    await ask(sandbox, "subprocess.Popen(['sleep', '1000'], start_new_session=True)")
    assert sandbox.leader is not None
    family = procfs.family(procfs.processes(), sandbox.leader)
    assert len(family) == 3
    await tell(sandbox, "os._exit(0)")
    await end(sandbox)
    await until(lambda: not family & procfs.processes().keys())


def test_an_earlier_oom_kill_is_not_the_cause() -> None:
    """An earlier out-of-memory kill of a child process is not the cause of a later exit."""
    limits = Limits(memory=2 * 1024**3)
    assert end_of(1, limits, True, "").cause is EndCause.KERNEL_DIED
    assert end_of(1, limits, False, "a\nb\x1b").last_line == "b\N{REPLACEMENT CHARACTER}"
    killed = end_of(137, limits, True, "")
    assert killed == SandboxEnd(EndCause.OUT_OF_MEMORY, "the sandbox exceeded its limit of 2.0 GiB")
    assert end_of(None, limits, False, "a\nb") == SandboxEnd(
        EndCause.SANDBOX_LOST, "the jail could not be set up: b"
    )


async def test_memory_without_control_groups(tmp_path: Path) -> None:
    """Without control groups the memory of all processes of a sandbox is measured."""
    async with running_backend(cgroup_root=tmp_path) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        source = "subprocess.Popen([sys.executable, '-c', hog], stdout=-1).stdout.read(1)"
        hog = "held = b'x' * (60 << 20); print('held', flush=True); import time; time.sleep(1000)"
        await ask(sandbox, source, hog=hog)
        used = await sandbox.memory()
        assert used is not None
        assert 60 * MIB < used < 150 * MIB


async def test_out_of_memory_by_watchdog(tmp_path: Path) -> None:
    """Without control groups the watchdog kills a sandbox over its limit of memory, with its children."""
    async with running_backend(cgroup_root=tmp_path) as backend:
        assert backend.describe()["limits"] == {
            "cpus": "none",
            "memory": "watchdog",
            "processes": "rlimit",
            "tmp_size": "tmpfs",
            "open_files": "rlimit",
            "workspace": "watched",
        }
        modest = await backend.launch("modest", SandboxSpec(limits=Limits(memory=100 * MIB)))
        greedy = await backend.launch("greedy", SandboxSpec(limits=Limits(memory=100 * MIB)))
        hog = "held = bytearray(60 << 20); open('/data/up', 'w'); import time; time.sleep(1000)"
        await ask(
            greedy, "[subprocess.Popen([sys.executable, '-c', h]) for h in (hog, hog)]", hog=hog
        )
        assert (await end(greedy)).cause is EndCause.OUT_OF_MEMORY
        assert await ask(modest, "result = 1") == 1


async def test_watchdog_continues_after_errors(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Errors of the watchdog show that the broker is degraded; the limit is enforced afterwards."""
    monkeypatch.setattr(supervisor_module, "BACKOFF_S", (0.01,))
    supervisor = Supervisor()
    looks = 0

    def no_descriptor_left(_limits: object) -> list[int]:
        nonlocal looks
        looks += 1
        raise OSError(errno.EMFILE, "Too many open files")

    async with running_backend(cgroup_root=tmp_path, supervisor=supervisor) as backend:
        with monkeypatch.context() as failing:
            failing.setattr(procfs, "over_memory", no_descriptor_left)
            greedy = await backend.launch("greedy", SandboxSpec(limits=Limits(memory=100 * MIB)))
            await until(lambda: looks >= 3)
            assert [task.name for task in supervisor.failing()] == ["memory watchdog"]
        assert "the background task 'memory watchdog' failed" in caplog.text
        hog = "held = bytearray(120 << 20); open('/data/up', 'w'); import time; time.sleep(1000)"
        await ask(greedy, "subprocess.Popen([sys.executable, '-c', hog])", hog=hog)
        assert (await end(greedy)).cause is EndCause.OUT_OF_MEMORY


# Cancellation


@pytest.mark.parametrize("verb", ["launch", "remove"])
async def test_cancelled_at_every_await(verb: str) -> None:
    """A cancelled launch leaves nothing behind; a cancelled removal still completes."""
    for step in range(1, 20):
        async with running_backend() as backend:
            (data,) = backend.data_dir.iterdir()
            descriptors = open_descriptors()
            if verb == "launch":
                cancelled = await cancelled_at(backend.launch("one", SandboxSpec()), step)
            else:
                sandbox = await backend.launch("one", SandboxSpec())
                cancelled = await cancelled_at(backend.remove(sandbox), step)
            if cancelled:
                await until(lambda data=data: not list((data / "sandboxes").iterdir()))
                await until(lambda: not backend._sandboxes.by_id)
                assert procfs.started_in(data) == []
                assert open_descriptors() == descriptors
                groups = [path for group in cgroups_of(data.parent) for path in group.iterdir()]
                assert not [path for path in groups if path.is_dir()]
            else:
                assert step > 1
                return
    raise AssertionError("it never came to its end")


async def test_sandboxes_leak_no_descriptors_or_processes(backend: LocalBackend) -> None:
    """Ten sandboxes leak no descriptors and no processes."""

    def state() -> tuple[int, int]:
        children = [p for p in procfs.processes().values() if p.parent == os.getpid()]
        return open_descriptors(), len(children)

    before = state()
    for number in range(10):
        sandbox = await backend.launch(f"s{number}", SandboxSpec())
        if number % 2:
            await tell(sandbox, "os._exit(1)")
            await end(sandbox)
        await backend.remove(sandbox)
    assert state() == before


# Start and stop


async def test_the_packaged_bubblewrap_makes_jails() -> None:
    """A machine without bubblewrap has jails all the same, by the program of a package."""
    packaged = programs._packaged()
    assert packaged is not None
    async with running_backend(bwrap=packaged) as backend:
        assert packaged in str(backend.describe()["programs"])
        sandbox = await backend.launch("one", SandboxSpec())
        assert await ask(sandbox, "result = os.getpid(), os.getuid()") == [2, 1000]
        await backend.remove(sandbox)


@requires("ripgrep")
async def test_description_is_json(backend: LocalBackend) -> None:
    """The description says in JSON values which limits are enforced, and how."""
    description = backend.describe()
    assert json.loads(json.dumps(description)) == description
    assert description["isolation"] == "bubblewrap"
    assert description["programs"]["bubblewrap"]
    assert description["programs"]["rg"] == str(KERNEL_PYTHON.parent / "rg")


BROKER = """
import asyncio, sys
from pathlib import Path
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.backends.local import LocalBackend

async def main():
    python, command, data, run, bwrap = sys.argv[1:]
    backend = LocalBackend(kernel_python=Path(python), data_dir=Path(data), run_dir=Path(run),
                           command=("-c", command), bwrap=bwrap)
    await backend.start()
    sandbox = await backend.launch("one", SandboxSpec())
    print(sandbox.leader, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def other_broker(data: Path, run: Path, bwrap: str = "bwrap") -> tuple[Any, int]:
    arguments = [str(KERNEL_PYTHON), PROBE[1], str(data), str(run), bwrap]
    broker = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-c", BROKER, *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if bwrap != "bwrap" else None,
    )
    async with asyncio.timeout(DEADLINE_S):
        return broker, int(await broker.stdout.readline())


@pytest.mark.parametrize("bwrap", ["bwrap", "no-such-bwrap"])
async def test_everything_dies_with_the_broker_and_is_reaped(bwrap: str) -> None:
    """The sandboxes of a killed broker die. The next broker removes their files, and no others."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        dead, leader = await other_broker(data, run, bwrap)
        (path,) = run.glob("*/one.sock")
        sandbox = Mock(endpoint=UnixEndpoint(path))
        assert await ask(sandbox, "result = 1") == 1  # the gateway answers, so bubblewrap is set up
        dead.kill()
        await dead.wait()
        await until(lambda: leader not in procfs.processes())
        (remains,) = data.iterdir()
        groups = cgroups_of(data)
        assert (remains / "sandboxes/one/workspace").is_dir()

        alive, _ = await other_broker(data, run, bwrap)
        try:
            assert not remains.exists()
            assert not [group for group in groups if group.exists()]
            (lives,) = data.iterdir()
            backend = LocalBackend(
                kernel_python=KERNEL_PYTHON, data_dir=data, run_dir=run, command=PROBE
            )
            await backend.start()
            assert (lives / "sandboxes/one/workspace").is_dir()
            await backend.stop()
        finally:
            alive.kill()
            await alive.wait()
        last = LocalBackend(kernel_python=KERNEL_PYTHON, data_dir=data, run_dir=run, command=PROBE)
        await last.start()
        await last.stop()
        assert list(data.iterdir()) == list(run.iterdir()) == []


async def test_a_gateway_ends_with_its_broker(tmp_path: Path) -> None:
    """A gateway dies with its broker without a jail, too."""
    library = Path(__file__).parents[2] / "kernel_image"
    ours, output = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gateway = await asyncio.create_subprocess_exec(
            *(KERNEL_PYTHON, *GATEWAY_COMMAND, "--fd", str(listener.fileno())),
            env=python_environment(KERNEL_PYTHON, library) | {"TMPDIR": str(tmp_path)},
            stdout=output,
            pass_fds=[listener.fileno()],
        )
        os.close(output)
        try:
            async with asyncio.timeout(DEADLINE_S):
                reader, writer = await asyncio.open_connection(*listener.getsockname())
                writer.write(b"GET /api HTTP/1.1\r\nHost: gateway\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 200")
                writer.close()
                os.close(ours)
                assert await gateway.wait() == EXIT_GATEWAY_FAILED
        finally:
            with contextlib.suppress(ProcessLookupError):
                gateway.kill()


async def test_a_jail_at_its_gate_is_reaped() -> None:
    """If a broker dies before it opens the gate of a jail, the next broker kills the jail."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        dead, _ = await other_broker(data, run)
        dead.kill()
        await dead.wait()
        (remains,) = data.iterdir()
        workspace = remains / "sandboxes/one/workspace"
        gate, status = os.pipe(), os.pipe()
        argv = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--bind", str(workspace), "/mnt"]
        argv += ["--json-status-fd", str(status[1]), "--block-fd", str(gate[0]), "true"]
        jail = subprocess.Popen(argv, pass_fds=[gate[0], status[1]])
        report = os.fdopen(status[0])
        leader = json.loads(report.readline())["child-pid"]
        jail.kill()
        jail.wait()
        assert leader in procfs.processes()
        async with running_backend(data_dir=data, run_dir=run):
            await until(lambda: leader not in procfs.processes())
        report.close()
        for descriptor in (*gate, status[1]):
            os.close(descriptor)


async def test_no_jail_where_one_is_required() -> None:
    """With `require_isolation` and no bubblewrap, `start` fails and says what to install."""
    with pytest.raises(BackendUnavailable, match="apt-get install bubblewrap"):
        async with running_backend(bwrap="no-such-bwrap"):
            pass


async def test_no_jail_without_a_filter(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `require_isolation`, `start` fails on a processor without a filter of system calls."""
    monkeypatch.setattr(seccomp, "filter_for", lambda *_, **__: None)
    with pytest.raises(BackendUnavailable, match=r"no filter of system calls .* Use containers"):
        async with running_backend():
            pass


async def test_a_jail_that_does_not_work(tmp_path: Path) -> None:
    """A failing bubblewrap is treated as a missing one, and its error message is shown."""
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho no permissions >&2; exit 1\n")
    broken.chmod(0o755)
    with pytest.raises(BackendUnavailable, match="no permissions"):
        async with running_backend(bwrap=str(broken)):
            pass


async def test_no_python() -> None:
    """The error for a Python that does not run contains its path."""
    with pytest.raises(BackendUnavailable, match="/no/such/python"):
        async with running_backend(kernel_python=Path("/no/such/python")):
            pass


@pytest.mark.parametrize("kind", ["local", LOCAL_FORK])
async def test_no_command_line_shows_the_variables(kind: str) -> None:
    """All users of the host can read command lines, at any moment, and nobody else's environment."""
    value = f"value-{uuid.uuid4().hex}"
    found: list[str] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.is_set():
            for path in Path("/proc").glob("[0-9]*/cmdline"):
                with contextlib.suppress(OSError):
                    if value.encode() in (line := path.read_bytes()):
                        found.append(line.decode())

    async with running(kind) as backend:
        watching = threading.Thread(target=watch)
        watching.start()
        try:
            spec = SandboxSpec(template="mine", env={"MINE": value})
            sandbox = await backend.launch("one", spec)
            assert await ask(sandbox, "result = os.environ['MINE']") == value
            await backend.remove(sandbox)
        finally:
            stop.set()
            watching.join()
    assert found == []


# Without isolation


async def test_plain_process(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a jail the gateway runs as a process with a clean environment, and the log has a warning."""
    monkeypatch.setenv("SECRET", "of the broker")
    options = {"bwrap": "no-such-bwrap", "require_isolation": False}
    async with running_backend(**options) as backend:
        assert "NO ISOLATION" in caplog.text
        assert backend.isolation is Isolation.PROCESS
        assert backend.describe()["seccomp"] == "none"
        env = {"PYTHONPATH": "/an/operators"}  # which comes after our own
        sandbox = await backend.launch("one", SandboxSpec(limits=Limits(open_files=200), env=env))
        source = """
import importlib.util, resource, kernelbroker_kernel
result = [os.getcwd(), os.environ["KERNELBROKER_WORKSPACE"], os.environ.get("SECRET"),
          resource.getrlimit(resource.RLIMIT_NOFILE)[0],
          importlib.util.find_spec("kernelbroker_server")]"""
        workspace = str(sandbox.workspace)
        assert await ask(sandbox, source) == [workspace, workspace, None, 200, None]


async def test_plain_process_is_removed_whole() -> None:
    """Removing a plain process kills its descendants, also in process sessions of their own."""
    options = {"bwrap": "no-such-bwrap", "require_isolation": False}
    async with running_backend(**options) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        source = """
shell("setsid sleep 1000 >/dev/null 2>&1 & sleep 1001 >/dev/null 2>&1 &")"""
        await ask(sandbox, source)
        started: set[int] = set()  # a process that is just being started has no environment yet

        def all_run() -> bool:
            started.update(procfs.started_in(sandbox.workspace.parent))
            return len(started & procfs.processes().keys()) == 3

        await until(all_run)
        await backend.remove(sandbox)
        await until(lambda: not started & procfs.processes().keys())


async def test_plain_process_out_of_memory(tmp_path: Path) -> None:
    """The watchdog enforces the limit of memory of plain processes."""
    options = {"bwrap": "no-such-bwrap", "require_isolation": False, "cgroup_root": tmp_path}
    async with running_backend(**options) as backend:
        sandbox = await backend.launch("one", SandboxSpec(limits=Limits(memory=100 * MIB)))
        await tell(sandbox, "held = bytearray(200 << 20); import time; time.sleep(1000)")
        assert (await end(sandbox)).cause is EndCause.OUT_OF_MEMORY


async def test_plain_process_with_too_long_a_path(tmp_path: Path) -> None:
    """A directory too deep for the sockets of a plain process is reported at start."""
    data_dir = tmp_path / ("long" * 12)
    with pytest.raises(BackendUnavailable, match=r"bubblewrap is missing.*shorter data_dir"):
        async with running_backend(
            bwrap="no-such-bwrap", require_isolation=False, data_dir=data_dir
        ):
            pass
    assert list(data_dir.iterdir()) == []


# As an ordinary user


@requires("root")
async def test_ordinary_user() -> None:
    """A broker that is not root runs jails without capabilities, with uid 1000."""
    script = """
import asyncio, json, sys, tempfile
from pathlib import Path
from kernelbroker_server.backends.base import Limits, SandboxSpec
from kernelbroker_server.backends.local import LocalBackend
from tests.backends.probes import FORKS, PROBE, ask

async def main():
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        backend = LocalBackend(kernel_python=Path("/usr/bin/python3"), require_isolation=True,
                               data_dir=Path(directory, "data"), run_dir=Path(directory, "run"),
                               command=PROBE)
        await backend.start()
        sandbox = await backend.launch("one", SandboxSpec(limits=Limits(processes=20)))
        status = await ask(sandbox, "result = open('/proc/self/status').read()")
        forked = await ask(sandbox, FORKS)
        paths = ["/x", "/etc/x", "/dev/x", "/usr/x"]
        writes = await ask(sandbox, "result = [attempt(open, p, 'w') for p in paths]", paths=paths)
        await backend.stop()
        print(json.dumps([status, forked, writes, backend.isolation]))

asyncio.run(main())
"""
    status, forked, writes, isolation = await run_as_nobody(script)
    assert "Uid:\t1000\t1000\t1000\t1000" in status
    assert [line.split()[1] for line in status.splitlines() if line[:3] == "Cap"] == ["0" * 16] * 5
    assert "NoNewPrivs:\t1" in status
    assert "Seccomp:\t2" in status
    assert forked[1] == "EAGAIN"
    assert forked[0] < 20
    assert writes == ["EROFS", "EROFS", "EROFS", "EROFS"]
    assert isolation == "bubblewrap"
