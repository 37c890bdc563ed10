"""The guarantees of jails: a filter of system calls, a file tree, and a user of their own."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.base import Limits, SandboxSpec
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.backends.local_sandbox import LocalSandbox

from tests.backends.probes import DEADLINE_S, ask, running_backend, tell, until
from tests.support.requires import requires

pytestmark = [pytest.mark.sandbox, requires("bubblewrap", "the kernels' environment")]


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    async with running_backend() as backend:
        yield backend


@pytest_asyncio.fixture
async def sandbox(backend: LocalBackend) -> LocalSandbox:
    return await backend.launch("jail", SandboxSpec(limits=Limits(processes=40)))


@requires("root")
async def test_no_root_on_the_host(sandbox: LocalSandbox) -> None:
    """On the host, code in the sandbox of a root broker runs as an unprivileged user."""
    assert await ask(sandbox, "result = os.getuid()") == 1000
    assert sandbox.leader is not None
    family = procfs.family(procfs.processes(), sandbox.leader) - {sandbox.leader}
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in family} == {200_000}


CRASH = """
import resource, signal
def crash():
    if (pid := os.fork()) == 0:
        os.abort()
    return os.WTERMSIG(os.waitpid(pid, 0)[1])
def lower():
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except ValueError as error:
        return str(error)
result = [crash(), lower(), crash()]"""


@pytest.fixture
def crashes() -> Iterator[Path]:
    """A file with a line for each crash on which the host ran its program for core dumps."""
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_text()
    with tempfile.TemporaryDirectory(prefix="kb-") as directory:
        lines, program = Path(directory, "crashes"), Path(directory, "program")
        lines.touch()
        program.write_text(f"#!/bin/sh\ncat >/dev/null\necho $1 >>{lines}\n")
        program.chmod(0o755)
        pattern.write_text(f"|{program} %s")
        try:
            yield lines
        finally:
            pattern.write_text(before)


@requires("root")
async def test_a_crash_runs_no_program_of_the_host(sandbox: LocalSandbox, crashes: Path) -> None:
    """The host's program for core dumps is not run, whatever a cell does to its limits."""
    refused = "not allowed to raise maximum limit"  # Python's words for EPERM
    assert await ask(sandbox, CRASH) == [signal.SIGABRT, refused, signal.SIGABRT]
    # The program is run for others, after those that came before.
    process = await asyncio.create_subprocess_exec("sh", "-c", "ulimit -c 0; kill -SEGV $$")
    await process.wait()
    await until(crashes.read_text)
    assert crashes.read_text().split() == [str(signal.SIGSEGV.value)]


async def test_the_root_directory_is_minimal(sandbox: LocalSandbox) -> None:
    """The root holds only the system, the workspace, and the path to Python."""
    meant = {"bin", "data", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc"}
    meant |= {"sbin", "tmp", "usr", "workspace"}
    prefix = await ask(sandbox, "result = sys.base_prefix.split('/')[1]")
    top = set(await ask(sandbox, "result = os.listdir('/')"))
    kernel_environment = Path(__file__).parts[1]
    assert top <= meant | {prefix, kernel_environment}
    assert await ask(sandbox, "result = os.listdir('/opt')") == ["kernelbroker"]
    assert await ask(sandbox, "result = sorted(os.listdir('/home'))") == ["sandbox", "user"]


async def test_host_accounts_are_hidden(sandbox: LocalSandbox) -> None:
    """The accounts of the host are hidden."""
    names = await ask(sandbox, "import pwd; result = [entry.pw_name for entry in pwd.getpwall()]")
    assert names == ["root", "sandbox"]


async def test_only_processes_of_the_jail_are_visible(sandbox: LocalSandbox) -> None:
    """A fresh jail has only its first process and its gateway."""
    source = "result = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"
    assert await ask(sandbox, source) == [1, 2]


async def test_cgroups_and_sysfs_are_not_mounted(sandbox: LocalSandbox) -> None:
    """Neither control groups nor /sys are mounted."""
    source = "result = [line.split()[2] for line in open('/proc/mounts')]"
    assert not {"cgroup", "cgroup2", "sysfs", "debugfs"} & set(await ask(sandbox, source))


async def test_socket_families_are_restricted(sandbox: LocalSandbox) -> None:
    """Only unix, Internet and netlink sockets can be created."""
    source = """
result = []
for family in range(1, 46):
    for kind in (1, 2, 3, 5):
        result.append([family, attempt(socket.socket, family, kind)])"""
    answers = await ask(sandbox, source)
    assert {family for family, answer in answers if answer.startswith("done")} <= {1, 2, 10, 16}
    assert {answer for family, answer in answers if family not in (1, 2, 10, 16)} == {"EPERM"}


async def test_netlink_protocols_are_restricted(sandbox: LocalSandbox) -> None:
    """Only the route protocol of netlink can be used."""
    source = "result = [attempt(socket.socket, 16, 3, number) for number in range(23)]"
    route, *others = await ask(sandbox, source)
    assert route.startswith("done")
    assert set(others) == {"EPERM"}


@requires("x86_64")
async def test_32_bit_system_calls_end_the_process(sandbox: LocalSandbox) -> None:
    """A system call by the 32-bit entry ends its process."""
    # mov eax, 20 (getpid); int 0x80; ret
    source = """
child = '''
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b814000000cd80c3"))
address = ctypes.addressof(ctypes.c_char.from_buffer(code))
print("pid", ctypes.CFUNCTYPE(ctypes.c_int)(address)())
'''
done = subprocess.run([sys.executable, "-c", child], capture_output=True, text=True)
result = [done.returncode, done.stdout]"""
    assert await ask(sandbox, source) == [-31, ""]


async def test_a_stopped_jail_is_removed(backend: LocalBackend, sandbox: LocalSandbox) -> None:
    """A jail is removed even if its code ignores or stops everything that it can."""
    source = """
import signal
for number in range(1, 65):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
os.kill(os.getpid(), signal.SIGSTOP)"""
    await tell(sandbox, source)
    async with asyncio.timeout(DEADLINE_S):
        await backend.remove(sandbox)
    assert not sandbox.workspace.exists()
