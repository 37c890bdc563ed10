"""The contract of all backends, tested with real sandboxes."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
from kernelbroker_server.backends import startup_check
from kernelbroker_server.backends.base import (
    Backend,
    EndCause,
    Isolation,
    LaunchError,
    Limits,
    Sandbox,
    SandboxEnd,
    SandboxSpec,
)
from kernelbroker_server.backends.directories import remove_tree
from kernelbroker_server.backends.kubernetes import KubernetesBackend
from kernelbroker_server.backends.local_sandbox import LocalSandbox
from kernelbroker_server.backends.pod_manifest import LABEL_SANDBOX
from kernelbroker_server.backends.sandbox_layout import GATEWAY_COMMAND
from kernelbroker_server.backends.usage import measure
from kernelbroker_server.kernels.endpoint import TcpEndpoint
from kernelbroker_server.pool.warm_sandbox import join, launch, run_silently
from kernelbroker_server.workspaces.layout import NO_TENANT, Layout, Record
from kernelbroker_server.workspaces.workspace_directory import WorkspaceDirectory

from tests.support.requires import lacks, requires
from tests.support.waiting import cancelled_at

from .brokers import GATEWAY, dead_broker, other_broker, running
from .probes import (
    BACKENDS,
    DEADLINE_S,
    FORKS,
    KUBERNETES,
    LOCAL_FORK,
    ask,
    connect,
    containers_of,
    end,
    no_check,
    pods_of,
    tell,
)

# One loop for all, since most share a backend: each start of one tries a sandbox out.
pytestmark = [pytest.mark.sandbox, pytest.mark.asyncio(loop_scope="module")]

MIB = 1024**2
LIMITS = Limits(memory=200 * MIB, processes=40, tmp_size=8 * MIB, open_files=100)
LONG = pytest.mark.long
OVER_TCP = pytest.param("docker-tcp", marks=[requires("docker"), LONG])
GVISOR = pytest.param("gvisor", marks=[requires("docker", "gvisor"), LONG])
SAME_OVER_TCP = {
    "test_files_move_to_the_next_sandbox",
    "test_shared_data_is_read_only",
    "test_imports_are_passed_to_the_gateway",
    "test_sandbox_ids_are_unique",
    "test_a_hostile_workspace_is_removed",
    "test_the_brokers_code_cannot_be_imported",
    "test_processes_are_bounded",
    "test_files_in_memory_are_bounded",
    "test_programs_in_tmp_run",
    "test_resource_limits_stay",
    "test_processor_time_is_limited",
    "test_exit_status_gives_the_cause",
    "test_out_of_memory",
    "test_a_child_out_of_memory",
    "test_a_connection_never_comes_too_early",
    "test_the_socket_cannot_be_replaced",
    "test_a_missing_module_is_named",
}
"""What does not depend on how the gateway is reached, or is about unix sockets alone."""


NOT_ON_GVISOR = {
    "test_processor_time_is_limited",  # its processes' clocks go on while the engine holds gVisor back
    "test_a_hostile_workspace_is_removed",
    "test_the_next_broker_reaps",
}
"""What cannot be seen from inside gVisor, or does not depend on the runtime and takes long."""
LONG_ON_KUBERNETES = {
    "test_connections_close_when_the_gateway_fails_to_start",
    "test_cancelled_at_every_await",
    "test_the_next_broker_reaps",
}
"""What waits for Pods many times. `e2e/test_kubernetes.py` tells the main story of each."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "kind" in metafunc.fixturenames:
        name = metafunc.function.__name__
        kinds = [*BACKENDS, LOCAL_FORK]
        if name not in NOT_ON_GVISOR:
            kinds.append(GVISOR)
        if name not in SAME_OVER_TCP:
            kinds.append(OVER_TCP)
        if name != "test_the_socket_cannot_be_replaced":  # it has none
            is_long = name in LONG_ON_KUBERNETES
            kinds.append(pytest.param("kubernetes", marks=[*KUBERNETES.marks, *[LONG] * is_long]))
        metafunc.parametrize("kind", kinds, scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(kind: str) -> AsyncIterator[Backend]:
    async with running(kind) as backend:
        yield backend


@pytest_asyncio.fixture(loop_scope="module")
async def backend(shared: Backend, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backend]:
    """The shared backend. Removes the sandboxes that the test launched."""
    launched: list[Sandbox] = []
    launch = shared.launch

    async def noted(sandbox_id: str, spec: SandboxSpec) -> Sandbox:
        launched.append(await launch(sandbox_id, spec))
        return launched[-1]

    monkeypatch.setattr(shared, "launch", noted)
    yield shared
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.gather(*map(shared.remove, launched))
    assert not [sandbox for sandbox in launched if sandbox.workspace.exists()]
    if isinstance(shared, KubernetesBackend):  # the cluster removes a Secret after its Pod
        async with asyncio.timeout(DEADLINE_S):
            for sandbox in launched:
                while (await shared._api.list("secrets", f"{LABEL_SANDBOX}={sandbox.id}"))[0]:  # noqa: ASYNC110
                    await asyncio.sleep(0.1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sandbox(shared: Backend) -> AsyncIterator[Sandbox]:
    """A sandbox with small limits, for tests that do not change it."""
    sandbox = await shared.launch("small", SandboxSpec(limits=LIMITS))
    yield sandbox
    await shared.remove(sandbox)


async def kill_and_pull(*sandboxes: Sandbox) -> None:
    """End the sandboxes' processes, and have their files at `workspace`."""
    for sandbox in sandboxes:
        await sandbox.kill()
        await sandbox.pull_files()


# Launch and remove


async def test_launch_and_remove(backend: Backend) -> None:
    """A launched sandbox answers and shares its workspace with the host. Removal leaves nothing behind."""
    sandbox = await backend.launch("one", SandboxSpec())
    (sandbox.workspace / "b").write_text("outside")
    await sandbox.push_files()
    source = "open('/workspace/a', 'w').write('inside'); result = [os.getcwd(), open('b').read()]"
    assert await ask(sandbox, source) == ["/data", "outside"]
    await kill_and_pull(sandbox)
    assert (sandbox.workspace / "a").read_text() == "inside"

    await backend.remove(sandbox)
    assert not sandbox.workspace.exists()
    # Nobody answers at the address of a Pod that is gone; elsewhere the connection is refused.
    is_pod = isinstance(sandbox.endpoint, TcpEndpoint) and sandbox.endpoint.tls is not None
    with pytest.raises(OSError, check=lambda error: is_pod or not isinstance(error, TimeoutError)):
        await asyncio.wait_for(connect(sandbox), 2 if is_pod else DEADLINE_S)
    assert sandbox.ended.done()
    await backend.remove(sandbox)


async def test_a_connection_never_comes_too_early(backend: Backend) -> None:
    """The socket accepts connections as soon as `launch` has returned."""
    sandbox = await backend.launch("one", SandboxSpec())
    _, writer = await connect(sandbox)
    writer.close()
    await writer.wait_closed()


async def test_concurrent_launches(backend: Backend) -> None:
    """Sandboxes can be launched and removed concurrently."""
    launches = (backend.launch(f"s{number}", SandboxSpec()) for number in range(6))
    sandboxes = await asyncio.gather(*launches)
    source = "open('mine', 'w').write(name); result = os.listdir('/data')"
    answers = await asyncio.gather(*(ask(s, source, name=s.id) for s in sandboxes))
    assert answers == [["mine"]] * 6
    await kill_and_pull(*sandboxes)
    assert [(s.workspace / "mine").read_text() for s in sandboxes] == [s.id for s in sandboxes]
    await asyncio.gather(*(backend.remove(sandbox) for sandbox in sandboxes))


async def test_files_move_to_the_next_sandbox(backend: Backend) -> None:
    """Files that are moved from one sandbox to the next can be changed there."""
    one, two = [await backend.launch(name, SandboxSpec()) for name in ("one", "two")]
    await ask(one, "open('/data/mine', 'w')")
    await kill_and_pull(one)
    (one.workspace / "mine").rename(two.workspace / "mine")
    await two.push_files()
    source = "open('/data/mine', 'a').close(); result = os.listdir('/data')"
    assert await ask(two, source) == ["mine"]


async def test_shared_data_is_read_only(backend: Backend, kind: str, tmp_path: Path) -> None:
    """A shared directory is visible at /data/shared and read-only."""
    tmp_path.chmod(0o755)  # sandboxes are users of their own
    (tmp_path / "table").write_text("1,2")
    (tmp_path / "table").chmod(0o666)
    if kind == "kubernetes":  # claims have a test of their own
        with pytest.raises(LaunchError, match=r"kubernetes\.claims"):
            await backend.launch("one", SandboxSpec(shared_data=tmp_path))
        return
    sandbox = await backend.launch("one", SandboxSpec(shared_data=tmp_path))
    source = """
result = [open('/data/shared/table').read(), attempt(open, '/data/shared/table', 'a'),
          attempt(os.rename, '/data/shared', '/data/other')]"""
    assert await ask(sandbox, source) == ["1,2", "EROFS", "EBUSY"]


async def test_wheels_are_read_only(backend: Backend, kind: str, tmp_path: Path) -> None:
    """The operator's wheels are visible at the path in a variable, and read-only."""
    tmp_path.chmod(0o755)  # sandboxes are users of their own
    (tmp_path / "made.whl").write_text("wheel")
    (tmp_path / "made.whl").chmod(0o666)
    if kind == "kubernetes":
        with pytest.raises(LaunchError, match=r"kubernetes\.claims"):
            await backend.launch("one", SandboxSpec(wheels=tmp_path))
        return
    sandbox = await backend.launch("one", SandboxSpec(wheels=tmp_path))
    source = """
path = os.environ["KERNELBROKER_WHEELS"] + "/made.whl"
result = [open(path).read(), attempt(open, path, 'a')]"""
    assert await ask(sandbox, source) == ["wheel", "EROFS"]


async def test_imports_are_passed_to_the_gateway(backend: Backend) -> None:
    """The gateway gets the list of modules to import."""
    sandbox = await backend.launch("one", SandboxSpec(imports=("numpy", "pandas")))
    arguments = await ask(sandbox, "result = sys.argv[1:]")
    assert arguments[2:] == ["--import", "numpy", "--import", "pandas"]


async def test_sandbox_ids_are_unique(backend: Backend) -> None:
    """A second sandbox with the same id is refused, and the first one is not affected."""
    sandbox = await backend.launch("one", SandboxSpec())
    with pytest.raises(LaunchError, match="already"):
        await backend.launch("one", SandboxSpec())
    assert await ask(sandbox, "result = 1") == 1


async def test_a_hostile_workspace_is_removed(backend: Backend, tmp_path: Path) -> None:
    """A deep workspace with missing permissions and many files is removed; links are not followed."""
    victim = tmp_path / "victim"
    victim.write_text("stays")
    sandbox = await backend.launch("one", SandboxSpec())
    source = """
os.symlink(victim, "/data/file")
os.symlink(os.path.dirname(victim), "/data/directory")
for number in range(3000):
    open(f"/data/{number}", "w").close()
os.mkdir("/data/closed")
open("/data/closed/file", "w").close()
os.chmod("/data/closed", 0)
os.chdir("/data")
for _ in range(3000):
    os.mkdir("deeper")
    os.chdir("deeper")
os.chdir("/data")
attempt(os.chmod, "/data", 0)  # the root of a volume belongs to its node"""
    await ask(sandbox, source, victim=str(victim))
    await backend.remove(sandbox)
    assert not sandbox.workspace.exists()
    assert victim.read_text() == "stays"


# What code finds inside


async def test_sandboxes_of_all_backends_are_alike(sandbox: Sandbox) -> None:
    """User, home, paths, variables and packages are the same on all backends."""
    source = """
import pwd, kernelbroker_kernel, pandas
result = [os.getuid(), pwd.getpwuid(os.getuid()).pw_name, os.path.expanduser("~"), sys.prefix,
          kernelbroker_kernel.__file__,
          [os.path.samefile(path, "/data") and not os.path.islink(path)
           for path in ("/workspace", "/home/user")], socket.gethostname(),
          {name: os.environ.get(name) for name in names}]"""
    names = {
        "HOME": "/home/sandbox",
        "USER": "sandbox",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": "1",
        "KERNELBROKER_WORKSPACE": "/data",
    }
    assert await ask(sandbox, source, names=list(names)) == [
        1000,
        "sandbox",
        "/home/sandbox",
        "/opt/kernelbroker/env",
        "/opt/kernelbroker/lib/kernelbroker_kernel/__init__.py",
        [True, True],
        "sandbox",
        names,
    ]


async def test_the_brokers_code_cannot_be_imported(sandbox: Sandbox) -> None:
    """Neither the broker's code nor the SDK can be imported."""
    source = """
import importlib.util
result = [importlib.util.find_spec(name) for name in ("kernelbroker", "kernelbroker_server")]"""
    assert await ask(sandbox, source) == [None, None]


async def test_no_privileges(sandbox: Sandbox, kind: str) -> None:
    """User code has no capabilities, cannot gain any, and runs under a seccomp filter."""
    status = await ask(sandbox, "result = open('/proc/self/status').read()")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"] == fields["Gid"] == "1000\t1000\t1000\t1000"
    assert fields["Groups"].strip() in ("", "1000")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd"):
        assert int(fields[name], 16) == 0, name
    assert await ask(sandbox, "result = libc.prctl(39, 0, 0, 0, 0)") == 1, "no_new_privs"
    if kind == "gvisor":  # it has no ambient capabilities, and answers all system calls itself
        assert "Starting gVisor" in await ask(sandbox, "result = shell('dmesg')")
        return
    assert int(fields["CapAmb"], 16) == 0
    assert fields["Seccomp"] == "2"


async def test_no_network(sandbox: Sandbox, kind: str) -> None:
    """No address outside the sandbox can be reached."""
    source = """
import threading
verdicts = {}
def reach(address):
    verdicts[address] = attempt(socket.create_connection, address, 2)
threads = [threading.Thread(target=reach, args=[address]) for address in addresses]
for thread in threads: thread.start()
for thread in threads: thread.join()
result = [[name for _, name in socket.if_nameindex()], [verdicts[a] for a in addresses],
          attempt(socket.getaddrinfo, "example.com", 80)]"""
    addresses = [("1.1.1.1", 53), ("169.254.169.254", 80), ("10.0.0.1", 80), ("172.17.0.1", 2375)]
    interfaces, verdicts, resolved = await ask(sandbox, source, addresses=addresses)
    if kind == "kubernetes":  # NetworkPolicies are the cluster's, and `describe` tells
        assert {"lo", "eth0"} <= set(interfaces)
        assert "done" not in resolved
        return
    assert interfaces == (["lo", "eth0"] if kind == "docker-tcp" else ["lo"])
    assert set(verdicts) <= {"ENETUNREACH", "EHOSTUNREACH", "ECONNREFUSED", "timed out"}
    assert "done" not in resolved


async def test_only_the_workspace_and_memory_can_be_written(sandbox: Sandbox) -> None:
    """All other directories refuse new files."""
    source = """
writable = []
mounts = {line.split()[4] for line in open("/proc/self/mountinfo")}
for top, directories, _ in os.walk("/"):
    if top.startswith(("/proc", "/sys")):
        directories.clear()
        continue
    if os.statvfs(top).f_flag & os.ST_RDONLY:  # so is all below, but for what is mounted there
        directories[:] = [name for name in directories if any(
            mount.startswith(os.path.join(top, name)) for mount in mounts)]
    try:
        open(os.path.join(top, "new-file"), "x").close()
        writable.append(top)
        os.unlink(os.path.join(top, "new-file"))  # the workspace has two paths
    except OSError:
        pass
result = sorted(writable)"""
    found = set(await ask(sandbox, source)) - {"/dev/mqueue"}  # queues, under limits of their own
    assert found == {"/data", "/dev/shm", "/home/sandbox", "/home/user", "/tmp", "/workspace"}


async def test_the_socket_cannot_be_replaced(backend: Backend) -> None:
    """Code in a sandbox cannot reach the path of the gateway's socket.

    Otherwise it could replace the socket with a link to another one, such as the container engine's, and
    the broker would connect to that.
    """
    sandbox = await backend.launch("one", SandboxSpec())
    source = """
def replace():
    os.symlink("/var/run/docker.sock", "/data/link")
    os.rename("/data/link", path)
sockets = [os.path.join(top, name) for top, _, names in os.walk("/") for name in names
           if not top.startswith(("/proc", "/sys", "/usr/"))
           and stat.S_ISSOCK(os.lstat(os.path.join(top, name)).st_mode)]
result = []
for path in [own, *sockets]:
    with socket.socket(socket.AF_UNIX) as other:
        result.append([attempt(other.connect, path), attempt(os.unlink, path), attempt(replace)])
    attempt(os.unlink, "/data/link")"""
    verdicts = await ask(sandbox, "import stat" + source, own=str(sandbox.endpoint.path))
    assert verdicts[0] == ["ENOENT"] * 3
    for connected, *others in verdicts[1:]:  # it accepts no second connection
        assert connected == "ECONNREFUSED"
        assert set(others) <= {"EROFS", "EBUSY", "EXDEV", "EPERM", "EACCES"}
    assert await ask(sandbox, "result = 1") == 1


# Limits


async def test_processes_are_bounded(backend: Backend, kind: str) -> None:
    """The limit bounds the number of processes and threads together."""
    limits = replace(LIMITS, memory=1024 * MIB)
    if kind == "kubernetes":  # the limit is the kubelet's, the same for all Pods
        assert backend.describe()["limits"]["processes"] == "node"  # type: ignore[index]
        return
    sandbox = await backend.launch("one", SandboxSpec(limits=limits))
    if kind == "gvisor":
        # The engine counts gVisor's own threads on the host. gVisor ends when it gets no more.
        await tell(sandbox, FORKS.replace("100", "1000"))
        assert (await end(sandbox)).cause is EndCause.KERNEL_DIED
        return
    count, verdict = await ask(sandbox, FORKS)
    assert verdict == "EAGAIN"
    assert 20 < count < 40


async def test_no_file_is_larger_than_the_workspace(backend: Backend) -> None:
    """A file cannot grow beyond the limit of the workspace; the write fails with EFBIG."""
    limits = Limits(workspace_size=3 * MIB)
    sandbox = await backend.launch("one", SandboxSpec(limits=limits))
    source = """
def fill():
    with open("/data/large", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 20))
result = [attempt(fill), os.path.getsize("/data/large") >> 20]"""
    assert await ask(sandbox, source) == ["EFBIG", 3]


async def test_a_hostile_workspace_is_measured_and_kept(
    backend: Backend, kind: str, tmp_path: Path
) -> None:
    """Hostile files are counted, moved to the next sandbox and removed."""
    victim = tmp_path / "victim"
    victim.write_text("stays")
    one = await backend.launch("one", SandboxSpec())
    source = """
os.symlink(victim, "/data/file")
os.symlink("/", "/data/root")
os.mkfifo("/data/pipe")
socket.socket(socket.AF_UNIX).bind("/data/socket")
open("/data/new\\nline \u6570", "w").close()
for number in range(1000):
    open(f"/data/{number}", "w").close()
for number in range(100):
    os.link("/data/0", f"/data/link{number}")
os.mkdir("/data/closed")
open("/data/closed/file", "w").write("x" * 100_000)
os.chmod("/data/closed", 0)
os.chdir("/data")
for _ in range(300):
    os.mkdir("deeper")
    os.chdir("deeper")
os.chdir("/data")
attempt(os.chmod, "/data", 0)  # the root of a volume belongs to its node"""
    await ask(one, source, victim=str(victim))
    await kill_and_pull(one)
    usage = measure(one.workspace, 10**6)
    # What gVisor makes of pipes and sockets never leaves its memory. They are not copied from Pods.
    special = 3 if kind in ("gvisor", "kubernetes") else 5
    assert usage.files == special + 1000 + 2 + 300
    assert 100_000 <= usage.size < 50 * MIB

    layout = Layout(backend.data_dir)
    kept = WorkspaceDirectory.claim(layout, Record(tenant=NO_TENANT, name="n"))
    kept.take(one.workspace, mounts=False)
    await backend.remove(one)
    assert kept.has_files()
    two = await backend.launch("two", SandboxSpec())
    kept.give(two.workspace)
    await two.push_files()
    source = """
os.chmod("/data/closed", 0o700)
result = [len(os.listdir("/data")), os.path.getsize("/data/closed/file")]"""
    assert await ask(two, source) == [special + 1000 + 100 + 2, 100_000]
    await kill_and_pull(two)
    assert measure(two.workspace, 10**6).files == usage.files
    kept.take(two.workspace, mounts=False)
    await backend.remove(two)
    gone = kept.withdraw()
    assert gone is not None
    assert await remove_tree(gone)
    assert list(layout.private.iterdir()) == []
    layout.private.rmdir()
    assert victim.read_text() == "stays"


async def test_files_in_memory_are_bounded(sandbox: Sandbox) -> None:
    """The tmpfs directories have a maximum size."""
    source = """
def fill(path):
    with open(path, "wb") as file:
        while True:
            file.write(bytes(1 << 20))
            file.flush()
result = {}
for directory in ("/tmp", "/home/sandbox", "/dev/shm"):
    verdict = attempt(fill, directory + "/full")
    result[directory] = [verdict, os.path.getsize(directory + "/full") >> 20]
    os.unlink(directory + "/full")"""
    full = ["ENOSPC", 8]
    assert await ask(sandbox, source) == {"/tmp": full, "/home/sandbox": full, "/dev/shm": full}


async def test_programs_in_tmp_run(sandbox: Sandbox) -> None:
    """Programs in the temporary directory can be run, as package installers need."""
    source = """
with open("/tmp/program", "w") as file:
    file.write("#!/bin/sh\\necho runs")
os.chmod("/tmp/program", 0o755)
result = shell("/tmp/program")"""
    assert await ask(sandbox, source) == "runs\n"


async def test_resource_limits_stay(sandbox: Sandbox) -> None:
    """Open files, the size of files and core dumps have hard limits."""
    source = """
import resource
result = [resource.getrlimit(kind) for kind in
          (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_CORE)]"""
    assert await ask(sandbox, source) == [[100, 100], [1024**3] * 2, [1, 1]]


async def test_processor_time_is_limited(backend: Backend) -> None:
    """Two busy processes of a sandbox together get no more than its share of a core."""
    if backend.describe()["limits"]["cpus"] == "none":  # type: ignore[index]
        lacks("control groups", "nothing else limits the CPU")
    sandbox = await backend.launch("one", SandboxSpec(limits=Limits(cpus=0.5)))
    source = """
import time
end = time.monotonic() + 1
if (pid := os.fork()) == 0:
    while time.monotonic() < end: pass
    os._exit(0)
before = sum(os.times()[:4])
while time.monotonic() < end: pass
os.waitpid(pid, 0)
result = sum(os.times()[:4]) - before"""
    assert await ask(sandbox, source) < 0.8


async def test_memory_is_measured(backend: Backend) -> None:
    """Memory of processes and tmpfs counts; the page cache does not."""
    sandbox = await backend.launch("one", SandboxSpec(limits=LIMITS))

    async def grown_by(source: str) -> int:
        before = await sandbox.memory()
        await ask(sandbox, source)
        after = await sandbox.memory()
        assert before is not None
        assert after is not None
        return after - before

    await ask(sandbox, "pass")  # it has started
    assert await grown_by("sys.held = b'x' * (50 << 20)") >= 49 * MIB
    assert await grown_by("open('/tmp/x', 'wb').write(bytes(5 << 20))") >= 4 * MIB
    assert await grown_by("open('/data/x', 'wb').write(bytes(50 << 20))") < 25 * MIB
    await backend.remove(sandbox)
    assert await sandbox.memory() is None


async def test_processor_time_is_measured(backend: Backend) -> None:
    """The processor time of the sandbox's processes is counted, and unknown after its end."""
    sandbox = await backend.launch("one", SandboxSpec(limits=LIMITS))
    await ask(sandbox, "pass")  # it has started
    before = await sandbox.processor_time()
    # gVisor counts a process that waits for a busy host's processor as running.
    await ask(sandbox, "import time\nwhile time.process_time() < 1.5: pass")
    after = await sandbox.processor_time()
    assert before is not None
    assert after is not None
    assert 0.2 < after - before < 8
    await backend.remove(sandbox)
    assert await sandbox.processor_time() is None


# Ends

ENDS = [
    ("os._exit(3)", EndCause.KERNEL_DIED, "the kernel exited with status 3"),
    ("os._exit(128 + 6)", EndCause.KERNEL_DIED, "the kernel was killed by SIGABRT"),
    ("os._exit(128 + 9)", EndCause.KERNEL_DIED, "the kernel was killed by SIGKILL"),
    ("os._exit(128 + 11)", EndCause.KERNEL_DIED, "the kernel was killed by SIGSEGV"),
    ("os.kill(os.getpid(), 9)", EndCause.KERNEL_DIED, "the kernel was killed by SIGKILL"),
    ("os.write(2, b'no\\nluck'); os._exit(125)", EndCause.SANDBOX_LOST, "the gateway failed: luck"),
    (  # whoever reads it has a terminal
        "os.write(2, b'\\x1b[2Jluck'); os._exit(125)",
        EndCause.SANDBOX_LOST,
        "the gateway failed: \N{REPLACEMENT CHARACTER}[2Jluck",
    ),
]


@pytest.mark.parametrize(("source", "cause", "detail"), ENDS, ids=[case[0] for case in ENDS])
async def test_exit_status_gives_the_cause(
    backend: Backend, source: str, cause: EndCause, detail: str
) -> None:
    """The exit status of the gateway determines the cause of an end."""
    sandbox = await backend.launch("one", SandboxSpec())
    await ask(sandbox, "pass")
    await tell(sandbox, source)
    assert await end(sandbox) == SandboxEnd(cause, detail)


HOG = "held = [bytearray(1 << 20) for _ in range(1024)]; result = len(held)"


async def test_out_of_memory(backend: Backend) -> None:
    """A gateway over its limit of memory ends as out of memory. Other sandboxes are not affected."""
    if backend.describe()["limits"]["memory"] == "watchdog":  # type: ignore[index]
        lacks("control groups", "the watchdog has a test of its own")
    other = await backend.launch("other", SandboxSpec())
    sandbox = await backend.launch("one", SandboxSpec(limits=Limits(memory=100 * MIB)))
    await tell(sandbox, HOG)
    expected = SandboxEnd(EndCause.OUT_OF_MEMORY, "the sandbox exceeded its limit of 0.1 GiB")
    assert await end(sandbox) == expected
    assert await ask(other, "result = 1") == 1


async def test_the_limit_of_memory_is_lowered(backend: Backend) -> None:
    """A lowered limit holds, the end names it, and it is never above that of the spec."""
    sandbox = await backend.launch("one", SandboxSpec(limits=Limits(memory=800 * MIB)))
    await ask(sandbox, "result = 1")
    await sandbox.change_limits(2**40, 1.0)
    assert sandbox.limits.memory == 800 * MIB
    await sandbox.change_limits(100 * MIB, 1.0)
    await sandbox.change_limits(200 * MIB, 1.0)
    assert await ask(sandbox, "result = len(bytearray(1 << 20))") == 1 << 20
    hold = "held = [bytearray(1 << 20) for _ in range(500)]\nimport time\ntime.sleep(60)"
    await tell(sandbox, hold)
    expected = SandboxEnd(EndCause.OUT_OF_MEMORY, "the sandbox exceeded its limit of 0.2 GiB")
    assert await end(sandbox) == expected


BURN = """import time
began, used = time.monotonic(), time.process_time()
while time.monotonic() - began < 1.5: pass
result = time.process_time() - used"""


async def test_the_limit_of_processors_is_lowered(backend: Backend) -> None:
    """A lowered limit of processors holds; gVisor, which cannot lower it, says so."""
    if backend.describe()["limits"]["cpus"] == "none":  # type: ignore[index]
        lacks("control groups", "nothing else limits the CPU")
    sandbox = await backend.launch("one", SandboxSpec(limits=Limits(cpus=1.0)))
    memory = sandbox.limits.memory
    if backend.isolation is Isolation.GVISOR:
        with pytest.raises(LaunchError, match="gVisor cannot lower"):
            await sandbox.change_limits(memory, 0.2)
        return
    await sandbox.change_limits(memory, 0.2)
    assert (sandbox.limits.cpus, sandbox.limits.memory) == (0.2, memory)
    assert await ask(sandbox, BURN) < 0.75
    await sandbox.change_limits(memory, 4.0)
    assert sandbox.limits.cpus == 1.0


async def test_a_child_out_of_memory(backend: Backend, kind: str) -> None:
    """A child process over the limit of memory dies alone, and is not the cause of a later exit."""
    if backend.describe()["limits"]["memory"] == "watchdog":  # type: ignore[index]
        lacks("control groups", "the watchdog ends the whole sandbox")
    sandbox = await backend.launch("one", SandboxSpec(limits=Limits(memory=100 * MIB)))
    source = "result = subprocess.run([sys.executable, '-c', hog]).returncode"
    if kind == "gvisor":  # all processes' memory is that of one process of the host
        await tell(sandbox, f"hog = {HOG!r}\n{source}")
        assert (await end(sandbox)).cause is EndCause.OUT_OF_MEMORY
        return
    assert await ask(sandbox, source, hog=HOG) == -signal.SIGKILL
    assert await ask(sandbox, "result = 1") == 1
    await tell(sandbox, "os._exit(1)")
    assert (await end(sandbox)).cause is EndCause.KERNEL_DIED


async def test_connections_close_when_the_gateway_fails_to_start(kind: str) -> None:
    """A connection made before the gateway started closes if the gateway fails to start."""
    command = ("-c", "import time; time.sleep(0.3)")
    async with running(kind, command=command, run_cell=no_check) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        try:
            reader, writer = await connect(sandbox)
        except TimeoutError:
            raise
        except OSError:  # over TCP nothing listens any more
            await end(sandbox)
            return
        await end(sandbox)
        async with asyncio.timeout(DEADLINE_S):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def request(sandbox: Sandbox, line: str, body: str = "") -> str:
    """One HTTP request to the gateway; returns its whole answer."""
    reader, writer = await connect(sandbox)
    headers = f"Host: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n"
    if isinstance(sandbox.endpoint, TcpEndpoint):
        headers += f"Authorization: token {sandbox.endpoint.token}\r\n"
    writer.write(f"{line} HTTP/1.1\r\n{headers}\r\n{body}".encode())
    async with asyncio.timeout(DEADLINE_S):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return answer.decode()


async def test_the_real_gateway(kind: str) -> None:
    """The gateway answers on the socket that the broker made, and ends when the sandbox is removed."""
    async with running(kind, command=GATEWAY_COMMAND) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        answer = await request(sandbox, "GET /api")
        assert answer.startswith("HTTP/1.1 200")
        assert "version" in json.loads(answer.partition("\r\n\r\n")[2])
        assert (await request(sandbox, "POST /api/kernels", "{}")).startswith("HTTP/1.1 201")
        assert not sandbox.ended.done()
        await backend.remove(sandbox)
        assert sandbox.ended.done()


async def test_a_missing_module_is_named(kind: str) -> None:
    """A failed launch names the missing module. An operator's PYTHONPATH causes no failure."""
    spec = SandboxSpec(imports=("no_such_module",), env={"PYTHONPATH": "/mine"})
    async with running(kind, command=GATEWAY_COMMAND) as backend:
        with pytest.raises(LaunchError, match="No module named 'no_such_module'"):
            await launch(backend, "one", spec, DEADLINE_S)


# Cancellation, stop, and what a dead broker leaves


async def launched_when_free(backend: Backend, name: str = "one") -> Sandbox:
    """The name is free again only when nothing is left. A cluster collects a Pod's Secret later."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            with contextlib.suppress(LaunchError):
                return await backend.launch(name, SandboxSpec())
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("verb", ["launch", "remove"])
async def test_cancelled_at_every_await(kind: str, verb: str) -> None:
    """A cancelled launch leaves nothing behind; a cancelled removal still completes."""
    async with running(kind) as backend:
        for step in range(1, 20) if kind != "kubernetes" else (1, 3, 9, 1000):
            name = f"try-{step}"
            if verb == "launch":
                cancelled = await cancelled_at(backend.launch(name, SandboxSpec()), step)
            else:
                sandbox = await backend.launch(name, SandboxSpec())
                cancelled = await cancelled_at(backend.remove(sandbox), step)
            if not cancelled:
                assert step > 1
                return
            again = await launched_when_free(backend, name)
            assert await ask(again, "result = os.listdir('/data')") == []
            await backend.remove(again)
    raise AssertionError("it never came to its end")


async def test_stop_removes_remaining_sandboxes(kind: str) -> None:
    """`stop` removes the remaining sandboxes, and later launches are refused."""
    async with running(kind) as backend:
        sandbox = await backend.launch("one", SandboxSpec())
        await backend.stop()
        assert sandbox.ended.done()
        with pytest.raises(LaunchError, match="not running"):
            await backend.launch("two", SandboxSpec())


async def test_description_has_the_limits(backend: Backend) -> None:
    """The description says in JSON values which limits are enforced, and how."""
    description = backend.describe()
    assert json.loads(json.dumps(description)) == description
    assert description["isolation"] == backend.isolation
    assert backend.isolation is not Isolation.PROCESS
    enforced = {"cpus", "memory", "processes", "tmp_size", "open_files", "workspace"}
    assert set(description["limits"]) == enforced  # type: ignore[call-overload]


def directories(data: Path) -> list[Path]:
    """Those of brokers."""
    return [path for path in data.iterdir() if not path.name.startswith(".")]


async def test_the_next_broker_reaps(kind: str) -> None:
    """A broker removes what a killed broker left behind, and nothing of a running one."""
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        await dead_broker(kind, data, run)
        (remains,) = directories(data)
        assert (remains / "sandboxes/one/workspace").is_dir()

        alive = await other_broker(kind, data, run)
        try:
            (lives,) = directories(data)
            assert lives != remains
            async with running(kind):  # it uses other directories
                pass
            await dead_broker(kind, data, run)
            assert (lives / "sandboxes/one/workspace").is_dir()
            if not kind.startswith("local"):
                there = str(pods_of(data) if kind == "kubernetes" else containers_of(data))
                assert f"kernelbroker-{remains.name}-one" not in there
                assert f"kernelbroker-{lives.name}-one" in there
        finally:
            alive.kill()
            await alive.wait()
        async with running(kind, data_dir=data, run_dir=run):  # which asserts that nothing is left
            assert not lives.exists()


def _flood(pid: int) -> None:
    """Write more than a pipe holds to the output of a process: this ends if somebody reads it."""
    with Path(f"/proc/{pid}/fd/1").open("wb", 0) as output:
        output.write(b"x" * 300_000)


async def test_the_next_broker_adopts(kind: str) -> None:
    """A broker with the id of a killed one gets its sandboxes: their kernels answer, and end with it."""
    spec = SandboxSpec(orphan_grace=60.0)
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        data, run = Path(directory, "data"), Path(directory, "run")
        await dead_broker(kind, data, run, command=GATEWAY, grace=60)
        async with running(
            kind,
            command=("-c", GATEWAY),
            run_cell=startup_check.run_cell,
            data_dir=data,
            run_dir=run,
            id_file=data.with_name("broker-id"),
        ) as backend:
            orphans = {each.sandbox.id: each for each in backend.orphans([spec])}
            await backend.end_orphans([])
            assert {name: each.session for name, each in orphans.items()} == {
                "one": "a session",
                "two": None,
            }
            for orphan in orphans.values():
                warm = await join(orphan, DEADLINE_S, None)
                if isinstance(orphan.sandbox, LocalSandbox):  # an engine reads that of a container
                    async with asyncio.timeout(DEADLINE_S):
                        await asyncio.to_thread(_flood, orphan.sandbox.roots[-1])
                await run_silently(warm, "pass", {})
                assert (await orphan.sandbox.memory() or 0) > MIB
                assert (await orphan.sandbox.usage(100)).complete
                await warm.gateway.close()
            one, two = (orphans[name].sandbox for name in ("one", "two"))
            await one.kill()
            assert one.ended.done()
            await backend.remove(two)
            assert not two.workspace.exists()
