"""The health check of the broker's images: python -m kernelbroker_server.health

It runs every few seconds, so it imports only the standard library. It reads the broker's URL from the file
that the broker writes at its start.
"""

from __future__ import annotations

import json
import os
import ssl
import sys
from pathlib import Path
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

_TIMEOUT_S = 4


def main() -> str | None:
    """Ask the broker whether it is alive.

    Returns:
        None if it is, else what is wrong.
    """
    try:
        path = Path(os.environ["KERNELBROKER_RUNTIME_FILE"])
        url = json.loads(path.read_text())["url"]
        # The certificate is not verified: the request stays on this machine and carries no secret.
        context = ssl._create_unverified_context()
        opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
        with opener.open(f"{url}/health/live", timeout=_TIMEOUT_S):
            return None
    except (OSError, ValueError, KeyError, TypeError) as exc:  # URLError is an OSError
        return f"the broker does not answer: {exc!r}"


if __name__ == "__main__":
    sys.exit(main())
