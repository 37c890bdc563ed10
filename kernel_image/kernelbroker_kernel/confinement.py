"""Confines a forked process as bubblewrap confines the processes that it starts.

The process enters the namespaces of a jail, becomes its user, gives up all capabilities and puts on the
jail's seccomp filter. Limits and control groups are set from outside, by the broker. `enter` runs in the
process between server and gateway, the rest in the gateway, before any code of the sandbox.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
from collections.abc import Collection, Sequence
from pathlib import Path

_NAMESPACES = {  # the flags of setns(2), by the name of the link in /proc/PID/ns
    "mnt": 0x00020000,
    "cgroup": 0x02000000,
    "uts": 0x04000000,
    "ipc": 0x08000000,
    "user": 0x10000000,
    "pid": 0x20000000,
    "net": 0x40000000,
}
_PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _PR_CAPBSET_DROP = 4, 38, 22, 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION = 0x20080522
_FILTER_BYTES = 8  # struct sock_filter
_HIGH = 64
"""Above all places that `place_descriptors` fills."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


class _CapabilityHeader(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


def enter(pidfd: int, kinds: Collection[str] = _NAMESPACES) -> None:
    """Enter all namespaces of a process; children are born in its pid namespace. Raises OSError.

    It must be one call: after the user namespace alone, the others cannot be entered any more. The calling
    process must have one thread only.

    Args:
        kinds: enter only these, by the names of the links in /proc/PID/ns.
    """
    flags = sum(
        flag
        for name, flag in _NAMESPACES.items()
        if name in kinds and Path(f"/proc/self/ns/{name}").exists()
    )
    _check(_libc.setns(pidfd, flags))


def become(uid: int | None) -> None:
    """Become this user of the jail, if given, and give up all capabilities for good. Raises OSError.

    An ordinary user's jail maps the user already.
    """
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    for capability in range(last + 1):
        _prctl(_PR_CAPBSET_DROP, capability)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header, none = _CapabilityHeader(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), none))
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    # A change of the user clears it, and with it the process's access to its own /proc/self/mem.
    _prctl(_PR_SET_DUMPABLE, 1)


def install_filter(program: bytes) -> None:
    """Put on a seccomp filter, which no process can take off. Raises OSError."""
    header = _Filter(len(program) // _FILTER_BYTES, program)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(header), 0, 0))


def place_descriptors(descriptors: Sequence[int]) -> None:
    """Move the descriptors to 0, 1, 2 and so on, and close all others. 0 to 3 are inheritable."""
    assert len(descriptors) < _HIGH
    # First out of the way of each other.
    high = [_duplicate_above(descriptor) for descriptor in descriptors]
    for number, descriptor in enumerate(high):
        os.dup2(descriptor, number, inheritable=number <= 3)
    os.closerange(len(descriptors), os.sysconf("SC_OPEN_MAX"))


def _duplicate_above(descriptor: int) -> int:
    return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _HIGH)


def _prctl(option: int, argument: int) -> None:
    _check(_libc.prctl(option, argument, 0, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
