"""`kernelbroker-server`: reads the settings, runs the broker until a signal, and prints how to reach it."""

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
    """Run the broker, or a `token` command.

    Returns:
        the exit status: 0 after an orderly end, 2 after an error.
    """
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
    parser.add_argument("--config", type=Path, help="the configuration file (TOML)")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("serve", help="run the broker (the default)")
    add_token_command(commands)
    return parser


async def _serve(settings: Settings) -> int:
    draining, stopping = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, draining.set)
    # Ctrl-C stops at once, without waiting for running cells.
    loop.add_signal_handler(signal.SIGINT, stopping.set)
    broker, leave = Broker(settings), False
    await broker.start()
    try:
        print(_banner(broker), flush=True)
        check = broker.startup_check
        await _first_of(draining.wait(), stopping.wait(), check.failed.wait())
        if check.failed.is_set():
            raise BackendUnavailable(check.message())
        print("kernelbroker: stopping", flush=True)
        if not stopping.is_set():
            await _first_of(broker.drain(), stopping.wait())
            leave = not stopping.is_set()
    finally:
        await broker.stop(leave=leave)
    return 0


async def _first_of(*awaited: Coroutine[Any, Any, Any]) -> None:
    """Wait until one of them has ended, and cancel the others. Raises the error of the one that failed."""
    tasks = [asyncio.create_task(each) for each in awaited]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in pending:
        task.cancel()
    await asyncio.gather(*pending, return_exceptions=True)
    for task in done:
        task.result()


def _banner(broker: Broker) -> str:
    warning = _WARNING if broker.backend.isolation is Isolation.PROCESS else ""
    settings = broker.settings
    # A generated token must be shown; a configured one must not appear in terminals and logs.
    generated = settings.token is None and settings.token_file is None and broker.token is not None
    token = broker.token if generated else "$TOKEN"
    return f"""{warning}
  kernelbroker is at   {broker.url}
  token                {token if generated else "as configured"}
  isolation            {broker.backend.isolation}

  Try in another terminal:

    .venv/bin/kernelbroker exec 'print("hello")'
    make demo
    curl -N -H "Authorization: Bearer {token}" \\
         -d '{{"code": "for i in range(3): print(i)"}}' {broker.url}/api/v1/exec
"""


if __name__ == "__main__":
    sys.exit(main())
