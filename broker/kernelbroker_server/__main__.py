"""`kernelbroker-server`: read the settings, serve until told to stop, say what a person must know."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from pathlib import Path

from .app import Broker
from .backends.base import BackendUnavailable, Isolation
from .config import ConfigError, Settings, load

_WARNING = """
  ** NO ISOLATION: code runs as a plain process with all the rights of this account.      **
  ** Install bubblewrap (apt-get install bubblewrap) and start again for isolated kernels. **
"""


def main(argv: list[str] | None = None) -> int:
    """Run the broker; 0 after an orderly end, 2 where it could not start."""
    parser = argparse.ArgumentParser(
        prog="kernelbroker-server",
        description="Lease warm, isolated kernels and stream their output.",
    )
    parser.add_argument("--config", type=Path, help="a TOML file of settings")
    options = parser.parse_args(argv)
    try:
        settings = load(options.config)
        logging.basicConfig(
            level=settings.log_level.upper(),
            format="%(asctime)s %(levelname)-7s %(name)s: %(message)s",
        )
        logging.getLogger("websockets").setLevel(
            logging.WARNING
        )  # at DEBUG it logs all that passes
        return asyncio.run(_serve(settings))
    except (ConfigError, BackendUnavailable, OSError, ValueError) as exc:
        print(f"kernelbroker-server: {exc}", file=sys.stderr)
        return 2


async def _serve(settings: Settings) -> int:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopping.set)
    broker = Broker(settings)
    await broker.start()
    try:
        print(_banner(broker), flush=True)
        await stopping.wait()
        print("kernelbroker: stopping", flush=True)
    finally:
        await broker.stop()
    return 0


def _banner(broker: Broker) -> str:
    warning = _WARNING if broker.backend.isolation is Isolation.PROCESS else ""
    settings = broker.settings
    # One that was made here must be told; one that was given is kept out of terminals and logs.
    made_here = settings.token is None and settings.token_file is None
    token = broker.token if made_here else "$TOKEN"
    return f"""{warning}
  kernelbroker is at   {broker.url}
  token                {token if made_here else "as it was set"}
  isolation            {broker.backend.isolation}

  Try, in another terminal:

    .venv/bin/kernelbroker exec 'print("hello")'
    make demo
    curl -N -H "Authorization: Bearer {token}" \\
         -d '{{"code": "for i in range(3): print(i)"}}' {broker.url}/api/v1/exec
"""


if __name__ == "__main__":
    sys.exit(main())
