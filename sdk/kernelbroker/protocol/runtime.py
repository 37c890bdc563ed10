"""Where broker and clients of one user on one machine meet: the runtime file. Paths only, no I/O.

The broker writes `{"url", "token", "pid"}` there, mode 0600, in a directory of its own, mode 0700; the
token is null where only those of a token file count. Clients that were told nothing else read it (see
`kernelbroker.discovery` for what they insist on).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DEFAULT_URL = "http://127.0.0.1:8720"
"""Where a broker listens, and a client looks, when nothing else was said."""


def runtime_file(environ: Mapping[str, str], uid: int) -> Path:
    """The path of the runtime file, for a user's environment and numeric id."""
    if explicit := environ.get("KERNELBROKER_RUNTIME_FILE"):
        return Path(explicit)
    if directory := environ.get("XDG_RUNTIME_DIR"):
        return Path(directory) / "kernelbroker" / "broker.json"
    return Path("/tmp") / f"kernelbroker-{uid}" / "broker.json"
