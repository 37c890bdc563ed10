"""How the `local` backend enforces isolation and limits, for `/health`."""

from __future__ import annotations

from . import seccomp
from .base import Isolation
from .local_sandbox import LocalContext


def describe(
    context: LocalContext, networks: object, no_checkpoints: str, launches: object
) -> dict[str, object]:
    """See `Backend.describe`.

    Args:
        no_checkpoints: why the processes of sandboxes cannot be saved; empty if they can.
    """
    jailed = context.isolation is Isolation.BUBBLEWRAP
    enforced_by = context.cgroups.enforced_by
    return {
        "backend": "local",
        "isolation": context.isolation.value,
        "programs": {
            "bubblewrap": str(context.host.bubblewrap) if jailed else None,
            **context.host.inside,
        },
        "seccomp": "on" if jailed and seccomp.filter_for() else "none",
        "host_user": "one of its own" if jailed and context.host.root else "the broker's",
        "networks": networks,
        "process_checkpoints": no_checkpoints or "criu",
        "launches": launches,
        "limits": {
            "cpus": enforced_by("cpu") or "none",
            "memory": enforced_by("memory") or "watchdog",
            "processes": enforced_by("pids") or ("rlimit" if jailed else "none"),
            "tmp_size": "tmpfs" if jailed else "none",
            "open_files": "rlimit",
            "workspace": "watched",
        },
    }
