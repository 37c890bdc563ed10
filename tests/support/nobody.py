"""Programs of a user without rights, who sees the checkout even where its directory is private."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

from tests.support.requires import ROOT

_SEEN = "/mnt"
"""Where the user sees the checkout: that of root may be in /root."""
_BIND = f'mount --bind "$0" {_SEEN} && exec setpriv --reuid=65534 --regid=65534 --clear-groups "$@"'


async def run_as_nobody(script: str) -> Any:
    """Run it in Debian's Python with the project's packages; returns the JSON that it printed."""
    site = next(path for path in sys.path if path.endswith("site-packages"))  # for pytest
    paths = [str(ROOT), *(f"{ROOT}/{name}" for name in ("broker", "kernel_image", "sdk")), site]
    done = await asyncio.create_subprocess_exec(
        *("unshare", "--mount", "--propagation", "private", "sh", "-c", _BIND, str(ROOT)),
        *("/usr/bin/python3", "-c", script),
        env={
            "PYTHONPATH": ":".join(path.replace(str(ROOT), _SEEN, 1) for path in paths),
            "PATH": "/usr/bin:/bin",
        },
        cwd="/tmp",
        stdout=subprocess.PIPE,
    )
    output, _ = await done.communicate()
    return json.loads(output)
