"""The filter of sockets, installed in a separate process."""

from __future__ import annotations

import subprocess
import sys

from kernelbroker_kernel import socket_filter

TRY = """
import ctypes, errno, socket
from kernelbroker_kernel import socket_filter
def verdict(*kind):
    try:
        socket.socket(*kind).close()
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"
before = socket_filter.install()
assert ctypes.CDLL(None).prctl(38, 1, 0, 0, 0) == 0, "no_new_privs"
print(before, socket_filter.install(), *[verdict(*kind) for kind in (
    (socket.AF_UNIX, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_STREAM),
    (socket.AF_INET6, socket.SOCK_DGRAM), (socket.AF_NETLINK, socket.SOCK_RAW, 0),
    (socket.AF_NETLINK, socket.SOCK_RAW, 9), (socket.AF_VSOCK, socket.SOCK_STREAM),
    (socket.AF_ALG, socket.SOCK_SEQPACKET))])
"""


def test_rare_sockets_are_refused() -> None:
    """Unix, IP and route sockets work; others are refused. The filter needs `no_new_privs`."""
    done = subprocess.run([sys.executable, "-c", TRY], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True", *["done"] * 4, *["EPERM"] * 3]


def test_an_unknown_architecture_has_no_filter() -> None:
    """On an architecture without known system call numbers no filter is built."""
    assert socket_filter.program("riscv64") is None
