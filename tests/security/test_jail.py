"""What is promised of a jail alone: its own filter of system calls, its own tree, its own user."""

# ruff: noqa: ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.base import Limits, SandboxSpec
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.backends.local_sandbox import LocalSandbox

from tests.backends.probes import (
    DEADLINE_S,
    ask,
    needs_jail,
    needs_kernel_environment,
    needs_root,
    running_backend,
    tell,
)

pytestmark = [pytest.mark.sandbox, needs_jail, needs_kernel_environment]


@pytest_asyncio.fixture
async def backend() -> AsyncIterator[LocalBackend]:
    async with running_backend() as backend:
        yield backend


@pytest_asyncio.fixture
async def sandbox(backend: LocalBackend) -> LocalSandbox:
    return await backend.launch("jail", SandboxSpec(limits=Limits(processes=40)))


@needs_root
async def test_no_root_on_the_host(sandbox: LocalSandbox) -> None:
    """Seen from the host, the code of a root broker's sandbox is neither root nor anybody else."""
    assert await ask(sandbox, "result = os.getuid()") == 1000
    assert sandbox.leader is not None
    family = procfs.family(procfs.processes(), sandbox.leader) - {sandbox.leader}
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in family} == {200_000}


async def test_only_what_is_meant_is_at_the_top(sandbox: LocalSandbox) -> None:
    """The root holds the system, the workspace, and the way to Python."""
    meant = {"bin", "data", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32", "opt", "proc"}
    meant |= {"sbin", "tmp", "usr", "workspace"}
    prefix = await ask(sandbox, "result = sys.base_prefix.split('/')[1]")
    top = set(await ask(sandbox, "result = os.listdir('/')"))
    kernel_environment = Path(__file__).parts[1]
    assert top <= meant | {prefix, kernel_environment}
    assert await ask(sandbox, "result = os.listdir('/opt')") == ["kernelbroker"]
    assert await ask(sandbox, "result = os.listdir('/home')") == ["sandbox"]


async def test_accounts_are_those_of_the_jail(sandbox: LocalSandbox) -> None:
    """The accounts of the host are not told."""
    names = await ask(sandbox, "import pwd; result = [entry.pw_name for entry in pwd.getpwall()]")
    assert names == ["root", "sandbox"]


async def test_only_its_own_processes(sandbox: LocalSandbox) -> None:
    """Nothing runs in a fresh jail but its first process and its gateway."""
    source = "result = sorted(int(name) for name in os.listdir('/proc') if name.isdigit())"
    assert await ask(sandbox, source) == [1, 2]


async def test_no_file_systems_of_the_kernel(sandbox: LocalSandbox) -> None:
    """Neither control groups nor /sys are mounted."""
    source = "result = [line.split()[2] for line in open('/proc/mounts')]"
    assert not {"cgroup", "cgroup2", "sysfs", "debugfs"} & set(await ask(sandbox, source))


@pytest.mark.parametrize(
    ("family", "kind", "number"),
    [(40, 1, 0), (38, 5, 0), (16, 3, 9), (16, 3, 15), (16, 3, 12), (31, 3, 0), (29, 3, 1)],
    ids=["hypervisor", "crypto", "audit", "events", "firewall", "bluetooth", "can"],
)
async def test_families_of_sockets(
    sandbox: LocalSandbox, family: int, kind: int, number: int
) -> None:
    """Sockets of rare families, each a door to a part of the kernel, cannot be made."""
    source = "result = attempt(socket.socket, family, kind, number)"
    assert await ask(sandbox, source, family=family, kind=kind, number=number) == "EPERM"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="the attempt is x86_64 machine code")
async def test_32_bit_calls(sandbox: LocalSandbox) -> None:
    """A call by the 32-bit entry, where other numbers hold, ends the process that makes it."""
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
    """Code that ignores signals, and stops all it can, is removed all the same."""
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
