"""Attempts with sockets that reach the hypervisor, or parts of the kernel that no cell needs."""

from __future__ import annotations

from . import Attempt

_NO_SUCH_SOCKET = "EPERM EAFNOSUPPORT"

ATTEMPTS = [
    Attempt("Sockets of rare kinds", name, code, refused)
    for name, code, refused in [
        (
            "the hypervisor by vsock",
            """
verdict = [attempt(connect, (cid, port), socket.AF_VSOCK) for cid in (0, 1, 2) for port in (22, 1024)]""",
            _NO_SUCH_SOCKET,
        ),
        (
            "the kernel's crypto",
            "verdict = attempt(socket.socket, socket.AF_ALG, socket.SOCK_SEQPACKET, 0)",
            _NO_SUCH_SOCKET,
        ),
        (
            "rare families of netlink",
            """
verdict = [attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, family)
        for family in range(1, 23)]""",
            "EPERM EPROTONOSUPPORT EAFNOSUPPORT",
        ),
        (
            "a socket by a ring",
            """
ring = (ctypes.c_uint32 * 30)()
verdict = attempt(call, "io_uring_setup", 4, ring)""",
            "EPERM ENOSYS",
        ),
    ]
]
