"""Check that the engine answers through the filter, for a health check: python -m engine_filter.ping"""

from __future__ import annotations

import socket
import sys

LISTEN = "/run/engine/docker.sock"
_TIMEOUT_S = 4


def main() -> int:
    """Return 0 if the engine answers."""
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(_TIMEOUT_S)
        client.connect(LISTEN)
        client.sendall(b"GET /_ping HTTP/1.1\r\nHost: engine\r\n\r\n")
        return int(b" 200 " not in client.recv(64))


if __name__ == "__main__":
    sys.exit(main())
