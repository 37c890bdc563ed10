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

from . import bpf

_AF_UNIX, _AF_INET, _AF_INET6, _AF_NETLINK, _NETLINK_ROUTE = 1, 2, 10, 16, 0
SOCKETS: list[list[tuple[float, str, int]]] = [
    [(0, bpf.EQUAL, _AF_UNIX)],
    [(0, bpf.EQUAL, _AF_INET)],
    [(0, bpf.EQUAL, _AF_INET6)],
    # getaddrinfo() and getifaddrs() list the interfaces with it
    [(0, bpf.EQUAL, _AF_NETLINK), (2, bpf.EQUAL, _NETLINK_ROUTE)],
]
"""The sockets that code may open, by the arguments of socket(2)."""
_SOCKET = {"x86_64": 41, "aarch64": 198}
_IO_URING_SETUP = 425
_PR_GET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _MODE_FILTER = 39, 22, 2


def program(machine: str) -> bytes | None:
    """The filter for this machine; None if its architecture is unknown."""
    refuse = bpf.fails(errno.EPERM)
    socket = _SOCKET.get(machine, 0)
    rules = [
        bpf.Rule(_IO_URING_SETUP, _IO_URING_SETUP, refuse),
        bpf.Rule(socket, socket, refuse, SOCKETS),
    ]
    return bpf.assemble(machine, rules, otherwise=bpf.ALLOW, foreign=refuse)


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
