"""How broker and client find out whether they are on the same machine. Does no I/O."""

from __future__ import annotations

import hashlib

BOOT_ID = "/proc/sys/kernel/random/boot_id"
"""The file to read. Containers have that of their machine."""


def machine_id(boot_id: bytes) -> str:
    """Return what identifies a machine until it is started again, and tells nothing about it."""
    return hashlib.sha256(b"kernelbroker:" + boot_id.strip()).hexdigest()[:32]
