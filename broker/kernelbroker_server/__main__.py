"""`kernelbroker-server`: read the settings, serve until told to stop, say what a person must know."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from .app import Broker
from .backends.base import BackendUnavailable, Isolation
from .config import ConfigError, Settings
from .config_file import load
from .telemetry import logs
from .tenants.tokens import TokenError
from .token_command import add_token_command, token_command

_WARNING = """
  ** NO ISOLATION: code runs as a plain process with all the rights of this account.      **
  ** Install bubblewrap (apt-get install bubblewrap) and start again for isolated kernels. **
"""


def main(argv: list[str] | None = None) -> int:
    """Run the broker, or see to tokens; 0 after an orderly end, 2 where it could not be done."""
    options = _parser().parse_args(argv)
    try:
        settings = load(options.config)
        if options.command == "token":
            return token_command(options, settings)
        logs.configure(settings.log_level, settings.log_format)
        return asyncio.run(_serve(settings))
    except (ConfigError, BackendUnavailable, TokenError, OSError, ValueError) as exc:
        print(f"kernelbroker-server: {exc}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kernelbroker-server",
        description="Lease warm, isolated kernels and stream their output.",
    )
    parser.add_argument("--config", type=Path, help="a TOML file of settings")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("serve", help="run the broker; what is done without a command")
    add_token_command(commands)
    return parser


async def _serve(settings: Settings) -> int:
    stopping, hurrying = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopping.set)
    # Who presses Ctrl-C wants an end, not one when all cells have ended.
    loop.add_signal_handler(signal.SIGINT, hurrying.set)
    broker = Broker(settings)
    await broker.start()
    try:
        print(_banner(broker), flush=True)
        await _first_of(stopping.wait(), hurrying.wait())
        print("kernelbroker: stopping", flush=True)
        if not hurrying.is_set():
            await _first_of(broker.drain(), hurrying.wait())
    finally:
        await broker.stop()
    return 0


async def _first_of(*awaited: Coroutine[Any, Any, Any]) -> None:
    """Wait for one of them; the rest is cancelled."""
    tasks = [asyncio.create_task(each) for each in awaited]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)


def _banner(broker: Broker) -> str:
    warning = _WARNING if broker.backend.isolation is Isolation.PROCESS else ""
    settings = broker.settings
    # One that was made here must be told; one that was given is kept out of terminals and logs.
    made_here = settings.token is None and settings.token_file is None and broker.token is not None
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
