"""The path of the runtime file, by which clients of one user on one machine find the broker. No I/O.

The broker writes `{"url", "token", "pid"}` there, mode 0600, in a private directory, mode 0700. The
token is null if only tokens of a token file are valid. Clients without other settings read it (see
`kernelbroker.discovery` for the checks).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8720"
"""The default URL of broker and clients."""


def runtime_file(environ: Mapping[str, str], uid: int) -> Path:
    """Return the path of the runtime file, for a user's environment and numeric id."""
    if explicit := environ.get("KERNELBROKER_RUNTIME_FILE"):
        return Path(explicit)
    if directory := environ.get("XDG_RUNTIME_DIR"):
        return Path(directory) / "kernelbroker" / "broker.json"
    return Path("/tmp") / f"kernelbroker-{uid}" / "broker.json"
