"""The socket on which the kernel waits for the gateway to hand over the connection of an export."""

from __future__ import annotations

import os

from . import environment


def socket_path(ticket: str) -> str:
    """Its path, in the directory that the kernel shares with the gateway."""
    directory = environment.at_start["JUPYTER_RUNTIME_DIR"]
    return os.path.join(directory, f"export-{ticket}")  # noqa: PTH118
