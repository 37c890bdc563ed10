"""Runs the seccomp filter in an interpreter of classic BPF, and in a real jail."""

from __future__ import annotations

import ctypes
import errno
import platform
import struct

import pytest
from kernelbroker_server.backends import seccomp
from kernelbroker_server.backends.base import SandboxSpec
from kernelbroker_server.backends.local import LocalBackend

from tests.support.requires import requires

from .probes import ask

X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ALLOW, KILL = 0x7FFF0000, 0x80000000
EPERM, ENOSYS = 0x50000 | errno.EPERM, 0x50000 | errno.ENOSYS


def verdict(program: bytes, audit: int, number: int, *arguments: int) -> int:
    """The verdict of the filter, as bpf(4) defines it for the instructions that it uses."""
    data = struct.pack("<iIQ6Q", number, audit, 0, *(*arguments, *[0] * (6 - len(arguments))))
    instructions = list(struct.iter_unpack("<HBBI", program))
    accumulator = position = 0
    while True:
        code, then, otherwise, value = instructions[position]
        position += 1
        if code == 0x06:
            return value
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        else:
            holds = {
                0x15: accumulator == value,
                0x35: accumulator >= value,
                0x45: bool(accumulator & value),
            }[code]
            position += then if holds else otherwise


CALLS = [  # name, number on x86_64, number on aarch64, arguments, verdict
    ("read", 0, 63, (), ALLOW),
    ("openat", 257, 56, (), ALLOW),
    ("execve", 59, 221, (), ALLOW),
    ("futex", 202, 98, (), ALLOW),
    ("memfd_create", 319, 279, (), ALLOW),
    ("mount", 165, 40, (), EPERM),
    ("ptrace", 101, 117, (), EPERM),
    ("bpf", 321, 280, (), EPERM),
    ("keyctl", 250, 219, (), EPERM),
    ("unshare", 272, 97, (), EPERM),
    ("io_uring_setup", 425, 425, (), EPERM),
    ("clone3", 435, 435, (), ENOSYS),
    ("open_tree_attr", 467, 467, (), EPERM),
    ("file_setattr, the newest", 469, 469, (), ALLOW),
    ("the next one", 470, 470, (), ENOSYS),
    ("one of the far future", 0x3FFFFFFF, 0x3FFFFFFF, (), ENOSYS),
    ("clone: a thread", 56, 220, (0x3D0F00,), ALLOW),
    ("clone: a fork", 56, 220, (0x1200011,), ALLOW),
    ("clone: NEWUSER", 56, 220, (0x10000011,), EPERM),
    ("clone: NEWNS", 56, 220, (0x20000,), EPERM),
    ("clone: NEWNET", 56, 220, (0x40000011,), EPERM),
    ("clone: NEWCGROUP", 56, 220, (0x02000011,), EPERM),
    ("ioctl: TCGETS", 16, 29, (0, 0x5401), ALLOW),
    ("ioctl: TIOCSTI", 16, 29, (0, 0x5412), EPERM),
    ("ioctl: TIOCSTI in disguise", 16, 29, (0, 0x1_0000_5412), EPERM),
    ("ioctl: TIOCLINUX", 16, 29, (0, 0x541C), EPERM),
    ("socket: unix", 41, 198, (1, 1, 0), ALLOW),
    ("socket: inet", 41, 198, (2, 1, 6), ALLOW),
    ("socket: inet6", 41, 198, (10, 2, 0), ALLOW),
    ("socket: netlink route", 41, 198, (16, 3, 0), ALLOW),
    ("socket: netlink netfilter", 41, 198, (16, 3, 12), EPERM),
    ("socket: packet", 41, 198, (17, 3, 0), EPERM),
    ("socket: alg", 41, 198, (38, 5, 0), EPERM),
    ("socket: vsock", 41, 198, (40, 1, 0), EPERM),
    ("socketpair: unix", 53, 199, (1, 1, 0), ALLOW),
    ("socketpair: tipc", 53, 199, (30, 1, 0), EPERM),
    ("setrlimit: NOFILE", 160, 164, (7, 1), ALLOW),
    ("setrlimit: CORE", 160, 164, (4, 1), EPERM),
    ("prlimit64: NOFILE", 302, 261, (0, 7, 1, 0), ALLOW),
    ("prlimit64: CORE is read", 302, 261, (0, 4, 0, 1), ALLOW),
    ("prlimit64: CORE is changed", 302, 261, (0, 4, 1, 0), EPERM),
    ("prlimit64: CORE in disguise", 302, 261, (0, 0x1_0000_0004, 0x1_0000_0000, 0), EPERM),
    ("personality: query", 135, 92, (0xFFFFFFFF,), ALLOW),
    ("personality: no randomization", 135, 92, (0x40000,), EPERM),
]


@pytest.mark.parametrize(
    ("x86_64", "aarch64", "arguments", "expected"),
    [call[1:] for call in CALLS],
    ids=[call[0] for call in CALLS],
)
def test_verdict(x86_64: int, aarch64: int, arguments: tuple[int, ...], expected: int) -> None:
    """A call has the same verdict on both architectures."""
    intel, arm = seccomp.filter_for("x86_64"), seccomp.filter_for("aarch64")
    assert intel is not None
    assert arm is not None
    assert verdict(intel, X86_64, x86_64, *arguments) == expected
    assert verdict(arm, AARCH64, aarch64, *arguments) == expected


def test_foreign_architecture() -> None:
    """A 32-bit call kills the process, and an x32 call is refused."""
    program = seccomp.filter_for("x86_64")
    assert program is not None
    assert verdict(program, I386, 0) == KILL
    assert verdict(program, AARCH64, 63) == KILL
    assert verdict(program, X86_64, 0x40000000) == EPERM
    assert verdict(program, X86_64, 0x40000000 | 165) == EPERM


def test_unknown_architecture() -> None:
    """An unknown architecture has no filter."""
    assert seccomp.filter_for("riscv64") is None


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_size(machine: str) -> None:
    """The filter has at most 4096 instructions, and no jump leaves it, as the kernel requires."""
    program = seccomp.filter_for(machine)
    assert program is not None
    instructions = list(struct.iter_unpack("<HBBI", program))
    assert len(instructions) < 4096
    for position, (code, then, otherwise, _) in enumerate(instructions):
        if code in (0x15, 0x35, 0x45):
            assert position + 1 + max(then, otherwise) < len(instructions)


def numbers_of(audit: int) -> dict[str, int]:
    """The calls of an architecture, by name, from the machine's libseccomp."""
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_syscall_resolve_num_arch.restype = ctypes.c_char_p
    found = {
        n: library.seccomp_syscall_resolve_num_arch(ctypes.c_uint32(audit), n) for n in range(500)
    }
    return {name.decode(): number for number, name in found.items() if name is not None}


@requires("libseccomp")
@pytest.mark.parametrize(("column", "audit"), [(0, X86_64), (1, AARCH64)])
def test_the_numbers_are_those_of_libseccomp(column: int, audit: int) -> None:
    """Each call that libseccomp knows has its number; none is in the table under another name."""
    known = numbers_of(audit)
    table = {name: pair[column] for name, pair in seccomp.allowed_calls().items()}
    unknown = {"uretprobe"} | {
        name for name, number in table.items() if (number or 0) > max(known.values())
    }
    for name in table.keys() - unknown:
        assert table[name] == known.get(name), name
    numbers = [number for number in table.values() if number is not None]
    assert len(numbers) == len({*numbers})


def test_what_is_refused() -> None:
    """A call that is in no list is refused, also where no call has a number; so are these."""
    program = seccomp.filter_for("x86_64")
    assert program is not None
    allowed = {pair[0] for pair in seccomp.allowed_calls().values()}
    for number in range(470):
        if number not in allowed and number not in (16, 41, 53, 56, 135, 160, 302, 435):
            assert verdict(program, X86_64, number) == EPERM, number
    for number in (
        165,
        166,
        155,
        161,
        428,
        467,
        101,
        310,
        321,
        298,
        323,
        425,
        250,
        272,
        308,
        175,
        304,
        237,
    ):
        assert number not in allowed
    entering = seccomp.filter_for("x86_64", may_enter=True)
    assert entering is not None and verdict(entering, X86_64, 308) == ALLOW


@pytest.mark.sandbox
@requires("bubblewrap")
@requires("the kernels' environment")
async def test_all_other_calls_fail_in_a_jail(backend: LocalBackend) -> None:
    """In a jail each call outside of the lists fails with EPERM (clone3: ENOSYS); the process continues."""
    sandbox = await backend.launch("one", SandboxSpec())
    column = ["x86_64", "aarch64"].index(platform.machine())
    lists = (seccomp.allowed_calls().values(), seccomp._CONDITIONAL)
    allowed = {pair[column] for each in lists for pair in each}
    uprobe = 336  # of x86_64: the kernel answers it itself, before any filter
    numbers = {str(number): number for number in {*range(470)} - allowed - {uprobe}}
    source = "result = {name: attempt(syscall, n, -1, -1, -1, -1, -1) for name, n in calls.items()}"
    verdicts = await ask(sandbox, source, calls=numbers)
    assert verdicts.pop("435") == "ENOSYS"
    assert len(verdicts) > 100 and set(verdicts.values()) == {"EPERM"}


WORKS = {
    "threads": """
from concurrent.futures import ThreadPoolExecutor
result = sum(ThreadPoolExecutor(4).map(int, "1234"))""",
    "multiprocessing": """
import multiprocessing
queue = multiprocessing.get_context("fork").Queue()
process = multiprocessing.get_context("fork").Process(target=queue.put, args=(10,))
process.start()
result = queue.get(timeout=10)
process.join()""",
    "subprocess": "result = int(subprocess.check_output(['sh', '-c', 'echo 10']))",
    "numpy": "import numpy; result = int(numpy.ones((50, 50)).dot(numpy.ones((50, 50)))[0][0]) - 40",
    "pandas": "import pandas; result = int(pandas.DataFrame({'a': [4, 6]}).a.sum())",
    "matplotlib": """
import matplotlib
matplotlib.use("agg")
import matplotlib.pyplot as plt
plt.plot([1, 2])
plt.savefig("/data/a.png")
result = 10 if os.path.getsize("/data/a.png") else 0""",
    "psutil": "import psutil; result = 10 if psutil.net_if_addrs() and psutil.pids() else 0",
    "name lookup": "result = 10 if socket.getaddrinfo('localhost', 80) else 0",
    "a terminal": "import pty; result = 10 if os.isatty(pty.openpty()[1]) else 0",
    "loopback": """
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).sendall(b"ten")
result = len(server.accept()[0].recv(10)) + 7""",
    "scripts of the environment": "result = 10 if 'pip' in shell('pip --version') else 0",
}


@pytest.mark.sandbox
@requires("bubblewrap")
@requires("the kernels' environment")
@pytest.mark.parametrize("source", WORKS.values(), ids=WORKS.keys())
async def test_common_programs_work_in_a_jail(backend: LocalBackend, source: str) -> None:
    """Threads, multiprocessing, plots and sockets work in a jail."""
    sandbox = await backend.launch("one", SandboxSpec())
    assert await ask(sandbox, source) == 10
