"""Refuses kinds of sockets that an engine's seccomp filter allows.

A container without a network can still open a vsock to the machine's hypervisor, and sockets of the
kernel's crypto and of rare netlink families. No cell needs them, nor io_uring, which opens sockets past a
filter. The filter needs no privileges where none can be gained (`no_new_privs`), and children inherit it.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
_ARCHITECTURES = {  # AUDIT_ARCH_*, and the number of socket(2)
    "x86_64": (0xC000003E, 41),
    "aarch64": (0xC00000B7, 198),
}
_X32 = 0x40000000
_IO_URING_SETUP = 425
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | errno.EPERM
_NUMBER, _ARCHITECTURE, _FIRST, _THIRD = 0, 4, 16, 32  # offsets in struct seccomp_data
_PR_GET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 39, 22, 2


def program(machine: str) -> bytes | None:
    """The filter for this machine; None if its architecture is unknown."""
    if machine not in _ARCHITECTURES:
        return None
    architecture, socket = _ARCHITECTURES[machine]
    # (code, jump if true, jump if false, value); jumps count from the next line.
    lines = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_EQUAL, 0, 13, architecture),  # no calls of 32-bit programs
        (_LOAD, 0, 0, _NUMBER),
        (_AT_LEAST, 11, 0, _X32),
        (_EQUAL, 10, 0, _IO_URING_SETUP),
        (_EQUAL, 0, 8, socket),
        (_LOAD, 0, 0, _FIRST),
        (_EQUAL, 6, 0, _AF_UNIX),
        (_EQUAL, 5, 0, _AF_INET),
        (_EQUAL, 4, 0, _AF_INET6),
        (_EQUAL, 0, 4, _AF_NETLINK),
        (_LOAD, 0, 0, _THIRD),
        (_EQUAL, 1, 2, _NETLINK_ROUTE),
        (_RETURN, 0, 0, _REFUSE),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _REFUSE),
    ]
    return b"".join(struct.pack("=HBBI", *line) for line in lines)


def install() -> bool:
    """Install the filter in this process, for it and its children. Returns whether that was possible."""
    libc = ctypes.CDLL(None, use_errno=True)
    code = program(platform.machine())
    if code is None or libc.prctl(_PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0) != 1:
        return False
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(_PR_SET_SECCOMP, _MODE_FILTER, ctypes.c_char_p(header), 0, 0) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return True
