"""Attempts to leave a jail, or to take more than its share, each made from inside a real one."""

# ruff: noqa: ASYNC110, ASYNC221, ASYNC240 - a test may block its own loop

from __future__ import annotations

import asyncio
import os
import platform
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from kernelbroker_server.backends import procfs
from kernelbroker_server.backends.base import EndCause, SandboxSpec
from kernelbroker_server.backends.local import LocalBackend
from kernelbroker_server.backends.local_sandbox import LocalSandbox

from tests.backends.probes import (
    DEADLINE_S,
    ask,
    needs_jail,
    needs_kernel_environment,
    needs_root,
    tell,
)

pytestmark = [pytest.mark.sandbox, needs_jail, needs_kernel_environment]

x86_64_only = pytest.mark.skipif(
    platform.machine() != "x86_64", reason="the attempt is machine code for x86_64"
)


# Who one is


async def test_no_privileges(sandbox: LocalSandbox) -> None:
    """User code is uid 1000 without groups, without any capability, and cannot gain any."""
    status = await ask(sandbox, "result = open('/proc/self/status').read()")
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert fields["Uid"] == fields["Gid"] == "1000\t1000\t1000\t1000"
    assert fields["Groups"].strip() in ("", "1000")
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(fields[name], 16) == 0, name
    assert fields["NoNewPrivs"] == "1"
    assert fields["Seccomp"] == "2"


async def test_no_way_to_root(sandbox: LocalSandbox) -> None:
    """No call changes the user, and a setuid program runs without its privilege."""
    source = """
result = [attempt(os.setuid, 0), attempt(os.setgroups, [0]), attempt(os.setresgid, 0, 0, 0),
          shell("su -c id 2>&1; sudo -n id 2>&1; mount -t tmpfs x /tmp 2>&1")]"""
    setuid, setgroups, setgid, programs = await ask(sandbox, source)
    assert (setuid, setgroups, setgid) == ("EPERM", "EPERM", "EPERM")
    assert "uid=0" not in programs


async def test_no_setuid_of_ones_own(sandbox: LocalSandbox) -> None:
    """A setuid bit on a file of the workspace gives nothing to who runs it."""
    source = """
import shutil
shutil.copy("/usr/bin/id", "/data/id")
os.chmod("/data/id", 0o6755)
result = [shell("/data/id -u").strip(), bool(os.statvfs("/data").f_flag & os.ST_NOSUID)]"""
    assert await ask(sandbox, source) == ["1000", True]


@needs_root
async def test_no_root_on_the_host(sandbox: LocalSandbox) -> None:
    """Seen from the host, the code of a root broker's sandbox is neither root nor anybody else."""
    assert await ask(sandbox, "result = os.getuid()") == 1000
    assert sandbox.leader is not None
    family = procfs.family(procfs.processes(), sandbox.leader) - {sandbox.leader}
    assert {Path(f"/proc/{pid}").stat().st_uid for pid in family} == {200_000}


# The host's files, environment and processes


async def test_no_files_of_the_host(sandbox: LocalSandbox, tmp_path: Path) -> None:
    """Files of the host outside its system directories are not there."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    paths = [secret, Path(__file__), "/etc/shadow", "/root/.ssh", "/root/.bashrc", "/var/log"]
    paths += ["/home/user", "/run", "/boot", "/etc/ssh", "/etc/sudoers", "/srv", "/mnt"]
    source = "result = [path for path in paths if os.path.exists(path)]"
    assert await ask(sandbox, source, paths=[str(path) for path in paths]) == []


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


async def test_no_environment_of_the_host(
    backend: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No variable of the broker's is found, in the own environment or in any that /proc shows."""
    monkeypatch.setenv("BROKER_SECRET", "f3b1c0de")
    sandbox = await backend.launch("one", SandboxSpec())
    source = """
import glob
texts = [repr(dict(os.environ))]
for path in glob.glob("/proc/[0-9]*/environ"):
    try:
        texts.append(open(path).read())
    except OSError:
        pass
result = "".join(texts)"""
    found = await ask(sandbox, source)
    assert "KERNELBROKER_WORKSPACE" in found
    assert "SECRET" not in found
    assert "f3b1c0de" not in found


async def test_no_processes_of_the_host(sandbox: LocalSandbox) -> None:
    """Only the jail's own processes are seen, and none of another can be signalled."""
    source = """
result = [sorted(int(name) for name in os.listdir("/proc") if name.isdigit()),
          attempt(os.kill, host_pid, 0), attempt(os.kill, 1, 9)]"""
    seen, host, init = await ask(sandbox, source, host_pid=max(4_000, os.getpid()))
    assert seen == [1, 2]
    assert host == "ESRCH"
    assert init in ("EPERM", "done")  # as an ordinary user; the kernel drops it then
    assert await ask(sandbox, "result = 1") == 1


async def test_every_process_signalled_at_once(sandbox: LocalSandbox) -> None:
    """A signal to all processes there are reaches the jail's alone."""
    bystander = await asyncio.create_subprocess_exec("sleep", "1000")
    await tell(sandbox, "subprocess.run([sys.executable, '-c', 'import os; os.kill(-1, 15)'])")
    async with asyncio.timeout(DEADLINE_S):
        await asyncio.shield(sandbox.ended)
    assert bystander.returncode is None
    bystander.kill()
    await bystander.wait()


async def test_no_open_files_of_the_broker(sandbox: LocalSandbox) -> None:
    """Only the standard streams and the listening socket are handed on."""
    source = """
result = {fd: os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")
          if os.path.lexists(f"/proc/self/fd/{fd}")}"""
    links = await ask(sandbox, source)
    files = [link for link in links.values() if not link.startswith(("pipe:", "socket:"))]
    assert [file for file in files if not file.startswith(("/dev/null", "/proc/"))] == []
    assert len([link for link in links.values() if link.startswith("socket:")]) == 2
    assert await ask(sandbox, "result = os.read(0, 1).decode()") == ""


async def test_no_memory_of_others(sandbox: LocalSandbox) -> None:
    """The memory of the jail's first process cannot be read, nor that of the kernel."""
    source = """
import ctypes
peer = subprocess.Popen(["sleep", "100"])
result = [attempt(open, path, "rb") for path in ("/proc/kcore", "/dev/mem", "/dev/kmem")]
result.append(attempt(syscall, 310, peer.pid, 0, 0, 0, 0, 0))
peer.kill(); peer.wait()"""
    *files, _ = await ask(sandbox, source)
    assert set(files) <= {"EACCES", "ENOENT", "EPERM"}


# Other sandboxes


async def test_no_files_of_other_sandboxes(backend: LocalBackend) -> None:
    """A sandbox finds neither the workspace nor the socket of another."""
    one, two = [await backend.launch(name, SandboxSpec()) for name in ("one", "two")]
    await ask(one, "open('/data/mine', 'w'); open('/tmp/mine', 'w'); open('/dev/shm/mine', 'w')")
    source = """
result = [[name for name in os.listdir(folder) if name == "mine"]
          for folder in ("/data", "/tmp", "/dev/shm")]
result += [[path for path in paths if os.path.lexists(path)],
          attempt(socket.socket(socket.AF_UNIX).connect, paths[0])]"""
    paths = [str(path) for path in (one.endpoint.path, one.workspace, one.workspace / "mine")]
    assert await ask(two, source, paths=paths) == [[], [], [], [], "ENOENT"]


async def test_no_abstract_sockets_of_others(backend: LocalBackend) -> None:
    """Abstract unix sockets, of the host or of another sandbox, cannot be reached."""
    one, two = [await backend.launch(name, SandboxSpec()) for name in ("one", "two")]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0kernelbroker-test-host")
        listener.listen()
        await ask(
            one,
            """
import builtins
builtins.kept = socket.socket(socket.AF_UNIX)
kept.bind("\\0kernelbroker-test-one"); kept.listen()""",
        )
        source = """
result = [attempt(socket.socket(socket.AF_UNIX).connect, "\\0kernelbroker-test-" + name)
          for name in ("host", "one")]"""
        assert await ask(two, source) == ["ECONNREFUSED", "ECONNREFUSED"]


async def test_the_socket_cannot_be_taken_away(sandbox: LocalSandbox) -> None:
    """The broker's socket is nowhere in the jail, so that nothing can stand in its place."""
    source = """
found = []
for top, directories, names in os.walk("/"):
    if top.startswith(("/proc", "/usr", sys.base_prefix, sys.prefix)):
        directories.clear()
    found += [name for name in names if name.endswith(".sock")]
result = [found, os.path.exists(os.path.dirname(path))]"""
    assert await ask(sandbox, source, path=str(sandbox.endpoint.path)) == [[], False]


# Kernel interfaces

CALLS = {  # by their number on x86_64; what is not denied by the filter is tested by its own means
    "ptrace": "attempt(syscall, 101, 16, 2, 0, 0)",
    "mount": "attempt(syscall, 165, b'x', b'/tmp', b'tmpfs', 0, 0)",
    "umount": "attempt(syscall, 166, b'/data', 2)",
    "remounting /usr writable": "attempt(syscall, 165, 0, b'/usr', 0, 0x1020, 0)",
    "pivot_root": "attempt(syscall, 155, b'/data', b'/data')",
    "chroot": "attempt(os.chroot, '/data')",
    "open_by_handle_at": "attempt(syscall, 304, 3, b'x' * 64, 0)",
    "a new user namespace": "attempt(syscall, 272, 0x10000000)",
    "a new mount namespace": "attempt(syscall, 272, 0x20000)",
    "a new user namespace by clone": "attempt(syscall, 56, 0x10000011, 0, 0, 0, 0)",
    "entering a namespace": "attempt(syscall, 308, 0, 0)",
    "the keyring": "attempt(syscall, 248, b'user', b'name', b'value', 5, -4)",
    "bpf": "attempt(syscall, 321, 0, 0, 0)",
    "perf_event_open": "attempt(syscall, 298, b'x' * 128, 0, -1, -1, 0)",
    "userfaultfd": "attempt(syscall, 323, 0)",
    "io_uring": "attempt(syscall, 425, 8, b'x' * 256)",
    "loading a module": "attempt(syscall, 313, 0, b'', 0)",
    "kexec": "attempt(syscall, 246, 0, 0, 0, 0)",
    "reboot": "attempt(syscall, 169, 0xfee1dead, 672274793, 0x89abcdef, 0)",
    "the kernel's log": "attempt(syscall, 103, 3, b'x' * 16, 16)",
    "the clock": "attempt(syscall, 227, 0, b'x' * 16)",
    "the host's name": "attempt(socket.sethostname, 'other')",
    "swap": "attempt(syscall, 167, b'/data/x', 0)",
    "a forged key press": "attempt(__import__('fcntl').ioctl, 0, 0x5412, b'x')",
    "a raw socket": "attempt(socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)",
    "a packet socket": "attempt(socket.socket, 17, socket.SOCK_RAW, 3)",
    "a socket to the hypervisor": "attempt(socket.socket, 40, socket.SOCK_STREAM)",
    "a kernel crypto socket": "attempt(socket.socket, 38, socket.SOCK_SEQPACKET)",
    "a device node": "attempt(os.mknod, '/data/disk', 0o60666, os.makedev(254, 0))",
    "a memory device": "attempt(os.mknod, '/tmp/mem', 0o20666, os.makedev(1, 1))",
    "real-time priority": "attempt(os.sched_setscheduler, 0, os.SCHED_FIFO, os.sched_param(1))",
    "a higher priority": "attempt(os.setpriority, os.PRIO_PROCESS, 0, -10)",
    "other limits": "attempt(__import__('resource').prlimit, 0, 7, (5000, 5000))",
}


@x86_64_only
@pytest.mark.parametrize("attempt", CALLS.values(), ids=CALLS.keys())
async def test_kernel_interface(sandbox: LocalSandbox, attempt: str) -> None:
    """What could reach the host through its kernel is refused for lack of permission."""
    source = f"""
try:
    result = {attempt}
except ValueError:  # Python's words for EPERM, where limits are concerned
    result = "EPERM"
"""
    assert await ask(sandbox, source) in ("EPERM", "EACCES")


async def test_namespaces_by_program(sandbox: LocalSandbox) -> None:
    """The programs that make namespaces and jails fail, though they are there."""
    lines = ["unshare -Ur id", "unshare -n id", "nsenter -t 1 -a id", "bwrap --ro-bind / / id"]
    outputs = await ask(sandbox, "result = [shell(line) for line in lines]", lines=lines)
    assert [output for output in outputs if "uid=" in output] == []


async def test_32_bit_calls(sandbox: LocalSandbox) -> None:
    """A call by the 32-bit entry, where other numbers hold, ends the process that makes it."""
    if platform.machine() != "x86_64":
        pytest.skip("the attempt is machine code for x86_64")
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


async def test_kernel_parameters(sandbox: LocalSandbox) -> None:
    """Parameters of the kernel can be neither written nor found under /sys."""
    paths = [
        "/proc/sys/kernel/core_pattern",
        "/proc/sys/kernel/hostname",
        "/proc/sys/vm/drop_caches",
    ]
    paths += ["/proc/sys/kernel/modprobe", "/proc/sysrq-trigger", "/proc/self/uid_map"]
    paths += ["/proc/sys/user/max_user_namespaces", "/proc/irq/default_smp_affinity"]
    assert await ask(sandbox, "result = os.path.exists('/sys')") is False
    source = "result = [attempt(os.open, path, os.O_WRONLY) for path in paths]"
    verdicts = await ask(sandbox, source, paths=paths)
    opened_map = verdicts.pop(5)  # may be opened, but takes no second writing
    assert set(verdicts) <= {"EACCES", "EROFS", "ENOENT"}, dict(zip(paths, verdicts, strict=False))
    assert opened_map == "EACCES" or opened_map.startswith("done")
    source = "result = attempt(open('/proc/self/uid_map', 'w', buffering=1).write, '0 0 1\\n')"
    if opened_map.startswith("done"):
        assert await ask(sandbox, source) == "EPERM"


async def test_control_groups(sandbox: LocalSandbox) -> None:
    """The jail's own limits are out of its reach: no control group is mounted."""
    source = "result = [line.split()[2] for line in open('/proc/mounts')]"
    assert not {"cgroup", "cgroup2", "sysfs", "debugfs"} & set(await ask(sandbox, source))


async def test_out_of_memory_score(sandbox: LocalSandbox) -> None:
    """A process cannot make itself less likely to be ended when memory is short."""
    source = """
def lower():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("-1000")
result = attempt(lower)"""
    assert await ask(sandbox, source) == "EACCES"


# The network


async def test_no_network(sandbox: LocalSandbox) -> None:
    """There is no interface but the loopback, and no way to any other address."""
    source = """
result = [[name for _, name in socket.if_nameindex()],
          [attempt(socket.create_connection, address, 2) for address in addresses],
          attempt(socket.getaddrinfo, "example.org", 80) != "done"]"""
    addresses = [("1.1.1.1", 53), ("169.254.169.254", 80), ("10.0.0.1", 80), ("172.17.0.1", 2375)]
    interfaces, verdicts, _ = await ask(sandbox, source, addresses=addresses)
    assert interfaces == ["lo"]
    assert verdicts == ["ENETUNREACH"] * 4


async def test_no_ports_of_the_host(sandbox: LocalSandbox) -> None:
    """The loopback is the jail's own: a port of the host's is not on it."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        source = "result = attempt(socket.create_connection, ('127.0.0.1', port), 2)"
        assert await ask(sandbox, source, port=port) == "ECONNREFUSED"


# What can be written


async def test_only_the_workspace_and_memory_can_be_written(sandbox: LocalSandbox) -> None:
    """Every other directory refuses new files."""
    source = """
writable = []
for top, directories, _ in os.walk("/"):
    if top.startswith(("/proc", "/usr/share", "/usr/lib/python3", "/usr/include")):
        directories.clear()
        continue
    try:
        open(os.path.join(top, "new-file"), "x").close()
        writable.append(top)
    except OSError:
        pass
result = sorted(writable)"""
    assert await ask(sandbox, source) == ["/data", "/dev/shm", "/home/sandbox", "/tmp"]


async def test_the_environment_stays_as_it_is(sandbox: LocalSandbox) -> None:
    """What other sandboxes run, too, cannot be changed: Python, its packages, our own code."""
    source = """
import json.decoder, numpy, kernelbroker_kernel
files = [sys.executable, json.decoder.__file__, numpy.__file__, kernelbroker_kernel.__file__,
         "/etc/passwd", "/bin/sh", "/etc/ld.so.cache"]
result = [attempt(os.open, file, os.O_WRONLY) for file in files]
result += [attempt(os.unlink, file) for file in files]
result += [attempt(os.chmod, file, 0o777) for file in files]"""
    assert set(await ask(sandbox, source)) <= {"EROFS", "EACCES", "EPERM", "EBUSY", "ETXTBSY"}


async def test_links_out_of_the_workspace(sandbox: LocalSandbox, tmp_path: Path) -> None:
    """A hard link to a system file is refused; a symbolic one leads nowhere when seen from inside."""
    (tmp_path / "secret").write_text("of the host")
    source = """
os.symlink(path, "/data/link")
os.symlink("../../../../../../.." + path, "/data/relative")
result = [attempt(os.link, "/etc/passwd", "/data/passwd"),
          attempt(os.link, "/usr/bin/env", "/data/env"),
          attempt(open, "/data/link"), attempt(open, "/data/relative")]"""
    hard, system, link, relative = await ask(sandbox, source, path=str(tmp_path / "secret"))
    assert {hard, system} <= {"EXDEV", "EPERM"}
    assert link == relative == "ENOENT"


async def test_tmp_is_bounded(sandbox: LocalSandbox) -> None:
    """Files in memory end at their limit, and together they count as the sandbox's memory."""
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


async def test_a_file_is_bounded(sandbox: LocalSandbox) -> None:
    """No single file of the workspace grows without end."""
    source = (
        "result = attempt(os.truncate, os.open('/data/big', os.O_CREAT | os.O_WRONLY), 1 << 40)"
    )
    assert await ask(sandbox, source) == "EFBIG"


# Resources


def processes_of(sandbox: LocalSandbox) -> int:
    assert sandbox.leader is not None
    return len(procfs.family(procfs.processes(), sandbox.leader))


async def test_fork_bomb(sandbox: LocalSandbox) -> None:
    """A bomb of forks ends at the limit, the host forks on, and the jail can be removed."""
    bomb = """
import os, signal
while True:
    try:
        os.fork()
    except OSError:
        signal.pause()"""
    await ask(sandbox, "subprocess.Popen([sys.executable, '-c', bomb])", bomb=bomb)
    async with asyncio.timeout(DEADLINE_S):
        while processes_of(sandbox) < 30:
            await asyncio.sleep(0.01)
    assert processes_of(sandbox) <= 41
    assert subprocess.run([sys.executable, "-c", ""], timeout=DEADLINE_S).returncode == 0


async def test_threads_are_bounded(sandbox: LocalSandbox) -> None:
    """Threads count as processes."""
    source = """
import threading
release, count = threading.Event(), 0
try:
    while count < 1000:
        threading.Thread(target=release.wait, daemon=True).start()
        count += 1
except RuntimeError:
    pass
release.set()
result = count"""
    assert await ask(sandbox, source) < 40


async def test_memory_bomb(backend: LocalBackend, sandbox: LocalSandbox) -> None:
    """Memory beyond the limit ends this sandbox as out of memory, and no other."""
    other = await backend.launch("other", SandboxSpec())
    await tell(sandbox, "held = [bytearray(1 << 20) for _ in range(1000)]")
    async with asyncio.timeout(DEADLINE_S):
        end = await asyncio.shield(sandbox.ended)
    assert end.cause is EndCause.OUT_OF_MEMORY
    assert end.detail == "the sandbox exceeded its limit of 0.2 GiB"
    assert await ask(other, "result = 1") == 1


async def test_open_files_are_bounded(sandbox: LocalSandbox) -> None:
    """File descriptors run out at the limit."""
    source = """
def exhaust():
    while True:
        opened.append(os.dup(0))
opened = []
result = [attempt(exhaust), len(opened)]
for fd in opened:
    os.close(fd)"""
    verdict, count = await ask(sandbox, source)
    assert verdict == "EMFILE"
    assert count < 100


async def test_limits_cannot_be_raised(sandbox: LocalSandbox) -> None:
    """Hard limits stay."""
    source = """
import resource
result = []
for kind in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC, resource.RLIMIT_FSIZE):
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        result.append("raised")
    except ValueError:
        result.append("refused")"""
    assert await ask(sandbox, source) == ["refused"] * 3


async def test_no_core_dumps(sandbox: LocalSandbox) -> None:
    """A crash leaves no dump of its memory in the workspace."""
    source = """
if (pid := os.fork()) == 0:
    os.abort()
status = os.waitpid(pid, 0)[1]
result = [os.WTERMSIG(status), os.WCOREDUMP(status), os.listdir("/data")]"""
    assert await ask(sandbox, source) == [6, False, []]


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
