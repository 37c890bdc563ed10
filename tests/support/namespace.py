"""A network namespace of a test, with its own addresses and names."""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.requires import require

_CLONE_NEWNET = 0x40000000
_LIBC = ctypes.CDLL(None, use_errno=True)


@contextmanager
def own_network(*addresses: str) -> Iterator[None]:
    """Move this thread and its child processes to a new network, which has only a loopback interface.

    The loopback has these addresses as well. Sockets that are created in the block stay in that network.
    """
    require("network namespaces", "ip")
    with Path("/proc/thread-self/ns/net").open() as former:
        _called("unshare", _CLONE_NEWNET)
        try:
            subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
            for address in addresses:
                subprocess.run(["ip", "address", "add", address, "dev", "lo"], check=True)
            yield
        finally:
            _called("setns", former.fileno(), _CLONE_NEWNET)


def with_names(hosts: Path, names: Mapping[str, str]) -> Sequence[str]:
    """A command that runs what follows it where these names, and localhost, have these addresses.

    Args:
        hosts: is written, and stands for /etc/hosts there.
    """
    lines = [f"{address} {name}\n" for name, address in {"localhost": "127.0.0.1", **names}.items()]
    hosts.write_text("".join(lines))
    bind = 'mount --bind "$1" /etc/hosts && shift && exec "$@"'
    return ["unshare", "--mount", "sh", "-c", bind, "sh", str(hosts)]


def _called(name: str, *arguments: int) -> None:
    if getattr(_LIBC, name)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
