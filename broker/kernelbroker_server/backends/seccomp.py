"""Builds the seccomp filter of a jail: a list of denied system calls in classic BPF. Does no I/O.

The list follows the default profile of Docker. It denies calls that load code into the kernel, read other
processes, create namespaces, mount file systems or set clocks, and calls that are used mostly by exploits.
A denied call fails with EPERM. `clone3` fails with ENOSYS, since a filter cannot read its flags in memory;
the C library then uses `clone`. Calls that are newer than the list fail with ENOSYS as well. A call of
another architecture kills the process, since its number means a different call there.

The formats are described in seccomp(2) and bpf(4): `struct sock_filter` and `struct seccomp_data`.
"""

from __future__ import annotations

import errno
import platform
import struct
from typing import NamedTuple

# name: (number on x86_64, number on aarch64); None if the architecture does not have the call.
_DENIED: dict[str, tuple[int, int | None]] = {
    # File systems and mounts
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "fanotify_init": (300, 262),
    # Namespaces
    "setns": (308, 268),
    "unshare": (272, 97),
    # The kernel itself
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "create_module": (174, None),
    "get_kernel_syms": (177, None),
    "query_module": (178, None),
    "syslog": (103, 116),
    "acct": (163, 89),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # Keyrings: there is no namespace for them
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Clocks and names
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    # Hardware and obsolete calls
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "vhangup": (153, 58),
    "nfsservctl": (180, 42),
    "lookup_dcookie": (212, 18),
    "uselib": (134, None),
    "ustat": (136, None),
    "sysfs": (139, None),
    "_sysctl": (156, None),
    "vserver": (236, None),
}
_NEWEST = 469
"""The last number of the system calls that were looked at: those of Linux 6.18, where it is file_setattr.
New calls have the same number on all architectures. One that is newer is refused, whatever it does, with
ENOSYS, so that the C library does without it."""
_NOT_IMPLEMENTED: dict[str, tuple[int, int | None]] = {"clone3": (435, 435)}

_EQUAL, _NOT_EQUAL, _NO_BITS = "equal", "not equal", "no bits"

# All CLONE_NEW* flags except CLONE_NEWTIME: in `clone` its bit is part of the exit signal.
_CLONE_NEW = 0x7E020000
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_RLIMIT_CORE = 4
_HIGH = 0.5
"""Added to the number of an argument: its high 32 bits."""

# A call is allowed if all tests (argument, comparison, value) of one of its lines hold. The filter compares
# the low 32 bits, since the kernel ignores the high bits of these arguments; of a pointer it compares both.
_CONDITIONAL: dict[tuple[int, int | None], list[list[tuple[float, str, int]]]] = {
    (56, 220): [[(0, _NO_BITS, _CLONE_NEW)]],  # clone
    (16, 29): [[(1, _NOT_EQUAL, _TIOCSTI), (1, _NOT_EQUAL, _TIOCLINUX)]],  # ioctl: forged input
    (41, 198): [  # socket
        [(0, _EQUAL, _AF_UNIX)],
        [(0, _EQUAL, _AF_INET)],
        [(0, _EQUAL, _AF_INET6)],
        # getaddrinfo() and getifaddrs() list the interfaces with it
        [(0, _EQUAL, _AF_NETLINK), (2, _EQUAL, _NETLINK_ROUTE)],
    ],
    (53, 199): [[(0, _EQUAL, _AF_UNIX)]],  # socketpair
    # The limit of 1 byte keeps a crash from running the host's program for core dumps; 0 would not. So it
    # can be read, and not changed.
    (160, 164): [[(0, _NOT_EQUAL, _RLIMIT_CORE)]],  # setrlimit
    (302, 261): [  # prlimit64
        [(1, _NOT_EQUAL, _RLIMIT_CORE)],
        [(2, _EQUAL, 0), (2 + _HIGH, _EQUAL, 0)],
    ],
    # personality: Linux and 32-bit Linux, both with and without UNAME26; the last value is a query
    (135, 92): [[(0, _EQUAL, value)] for value in (0, 8, 0x20000, 0x20008, 0xFFFFFFFF)],
}


class _Architecture(NamedTuple):
    column: int
    audit: int
    """AUDIT_ARCH_* of linux/audit.h"""


_ARCHITECTURES = {
    "x86_64": _Architecture(0, 0xC000003E),
    "aarch64": _Architecture(1, 0xC00000B7),
}

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER_AT, _ARCHITECTURE_AT = 0, 4
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_X32_BIT = 0x40000000


def filter_for(
    machine: str = platform.machine(), *, allowed: frozenset[str] = frozenset()
) -> bytes | None:
    """The filter for `bwrap --seccomp`; None for an unknown architecture.

    Args:
        allowed: calls of the list that are not denied after all.
    """
    architecture = _ARCHITECTURES.get(machine)
    return None if architecture is None else _assemble(architecture, allowed)


def _assemble(architecture: _Architecture, allowed: frozenset[str]) -> bytes:
    refuse = _instruction(_RETURN, _ERRNO | errno.EPERM)
    program = [
        _instruction(_LOAD, _ARCHITECTURE_AT),
        _instruction(_JUMP_EQUAL, architecture.audit, then=1),
        _instruction(_RETURN, _KILL_PROCESS),
        _instruction(_LOAD, _NUMBER_AT),
        # The x32 calls of x86_64 have this bit set. No architecture has call numbers above it.
        _instruction(_JUMP_GREATER_EQUAL, _X32_BIT, otherwise=1),
        refuse,
        _instruction(_JUMP_GREATER_EQUAL, _NEWEST + 1, otherwise=1),
        _instruction(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    for calls, number in ((_DENIED, errno.EPERM), (_NOT_IMPLEMENTED, errno.ENOSYS)):
        for name, numbers in calls.items():
            if (call := numbers[architecture.column]) is not None and name not in allowed:
                program.append(_instruction(_JUMP_EQUAL, call, otherwise=1))
                program.append(_instruction(_RETURN, _ERRNO | number))
    for numbers, lines in _CONDITIONAL.items():
        if (call := numbers[architecture.column]) is not None:
            block = [instruction for line in lines for instruction in _allow_if_all(line)]
            program.append(_instruction(_JUMP_EQUAL, call, otherwise=len(block) + 1))
            program += [*block, refuse]
    program.append(_instruction(_RETURN, _ALLOW))
    return b"".join(program)


def _allow_if_all(line: list[tuple[float, str, int]]) -> list[bytes]:
    """Instructions that return _ALLOW if all tests hold, and otherwise continue after the line."""
    block: list[bytes] = []
    for position, (argument, comparison, value) in enumerate(line):
        past_the_line = 2 * (len(line) - position - 1) + 1
        code = _JUMP_BITS if comparison == _NO_BITS else _JUMP_EQUAL
        then, otherwise = (0, past_the_line) if comparison == _EQUAL else (past_the_line, 0)
        block.append(_instruction(_LOAD, 16 + int(8 * argument)))  # little-endian
        block.append(_instruction(code, value, then=then, otherwise=otherwise))
    return [*block, _instruction(_RETURN, _ALLOW)]


def _instruction(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    return struct.pack("<HBBI", code, then, otherwise, value)
