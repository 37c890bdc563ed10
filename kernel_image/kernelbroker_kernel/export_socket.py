"""The socket on which the kernel waits for the gateway to hand over the connection of an export."""

from __future__ import annotations

import os


def socket_path(ticket: str) -> str:
    """Its path, in the directory that the kernel shares with the gateway."""
    return os.path.join(os.environ["JUPYTER_RUNTIME_DIR"], f"export-{ticket}")  # noqa: PTH118
