"""`kernelbroker-server`: reads the settings, runs the broker until a signal, and prints how to reach it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from .app import Broker
from .backends.base import BackendUnavailable, Isolation
from .config import ConfigError, Settings
from .config_file import load
from .credentials import is_made
from .doctor.command import add_doctor_command, doctor_command
from .hand_over import Listener, Predecessor, Successor
from .open_files import raise_limit
from .telemetry import logs
from .tenants.tokens import TokenError
from .token_command import add_token_command, token_command
from .upkeep.commands import COMMANDS, add_upkeep_commands, upkeep_command

logger = logging.getLogger(__name__)

_WARNING = """
  ** NO ISOLATION: code runs as a plain process with all the rights of this account.      **
  ** The log says why. For isolated kernels do what `kernelbroker doctor` advises.        **
"""


def main(argv: list[str] | None = None) -> int:
    """Run the broker, or another command.

    Returns:
        the exit status: 0 after an orderly end, 2 after an error, and 1 if the doctor has found errors.
    """
    options = _parser().parse_args(argv)
    try:
        if options.command == "doctor":
            return doctor_command(options)
        if options.command in COMMANDS:
            return upkeep_command(options)
        settings = load(options.config)
        if options.command == "token":
            return token_command(options, settings)
        raise_limit()
        logs.configure(settings.log_level, settings.log_format, settings.log_file)
        new_token = options.new_token
        if new_token and not is_made(settings):
            raise ConfigError("--new-token: the settings name the tokens; change them there")
        return asyncio.run(_serve(settings, take_over=options.take_over, new_token=new_token))
    except (ConfigError, BackendUnavailable, TokenError, OSError, ValueError) as exc:
        print(f"kernelbroker-server: {exc}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kernelbroker-server",
        description="Lease warm, isolated kernels and stream their output.",
    )
    parser.add_argument("--config", type=Path, help="the configuration file (TOML)")
    parser.add_argument(
        "--take-over",
        action="store_true",
        help="take sockets, sessions and sandboxes from the broker that runs with this state_dir",
    )
    parser.add_argument(
        "--new-token",
        action="store_true",
        help="make another token; otherwise the one that was made at the first start stays valid",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("serve", help="run the broker (the default)")
    add_token_command(commands)
    add_doctor_command(commands)
    add_upkeep_commands(commands)
    for command in commands.choices.values():
        command.add_argument(
            "--config", type=Path, default=argparse.SUPPRESS, help="the configuration file (TOML)"
        )
    return parser


async def _serve(settings: Settings, *, take_over: bool = False, new_token: bool = False) -> int:
    draining, stopping = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, draining.set)
    # Ctrl-C stops at once, without waiting for running cells.
    loop.add_signal_handler(signal.SIGINT, stopping.set)
    signals = (draining, stopping)
    if not os.isatty(0):  # otherwise the terminal sends it when it is closed
        loop.add_signal_handler(signal.SIGHUP, _start_successor)
    broker = Broker(
        settings, new_token=new_token
    )  # reports wrong settings before anything is taken over
    if not take_over:
        successor = await _run(broker, [], *signals)
    else:
        if broker.state_directory is None:
            raise ConfigError(
                'a broker takes over only with shutdown = "adopt", a sandbox.orphan_grace and a state_dir'
            )
        predecessor = Predecessor(broker.state_directory)
        try:
            sockets = await predecessor.sockets()
            successor = await _run(broker, sockets, *signals, on_start=predecessor.confirm)
        finally:
            predecessor.close()
    while successor is not None:
        heir, sockets = successor
        await _first_of(heir.give(sockets), draining.wait(), stopping.wait())
        if heir.serves or draining.is_set() or stopping.is_set():
            return 0
        logger.error("the broker that was to take over has failed; this one goes on")
        token = (
            None if broker.token is None else SecretStr(broker.token)
        )  # it may be a generated one
        broker = Broker(settings.model_copy(update={"token": token, "token_file": None}))
        successor = await _run(broker, sockets, *signals)
    return 0


def _start_successor() -> None:
    """Start a broker with the same arguments, which takes over from this one."""
    arguments = [each for each in sys.argv[1:] if each not in ("--take-over", "--new-token")]
    subprocess.Popen([sys.executable, "-m", __package__, "--take-over", *arguments])


async def _run(
    broker: Broker,
    sockets: Sequence[socket.socket],
    draining: asyncio.Event,
    stopping: asyncio.Event,
    on_start: Callable[[], None] = lambda: None,
) -> tuple[Successor, list[socket.socket]] | None:
    """Run the broker until a signal. Returns the successor that asked for its sockets, and these."""
    await broker.start(sockets)
    for each in sockets:
        each.close()  # the broker has its own
    leave, handed = False, None
    listener = None if broker.state_directory is None else Listener(broker.state_directory)
    asked = asyncio.Event() if listener is None else listener.asked
    try:
        on_start()
        print(_banner(broker), flush=True)
        check = broker.startup_check
        await _first_of(draining.wait(), stopping.wait(), check.failed.wait(), asked.wait())
        if check.failed.is_set():
            raise BackendUnavailable(check.message())
        print("kernelbroker: stopping", flush=True)
        if not stopping.is_set():
            if asked.is_set():
                handed = broker.stop_accepting()  # connections wait for the successor
            await _first_of(broker.drain(), stopping.wait())
            leave = not stopping.is_set()
    finally:
        successor = None if listener is None else listener.close()
        await broker.stop(leave=leave)
        if successor is not None and (handed is None or not leave):
            successor.close()
    return (successor, handed) if successor and handed and leave else None


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
    warning = _WARNING if broker.backends.weakest_isolation is Isolation.PROCESS else ""
    settings = broker.settings
    # A generated token must be shown; a configured one must not appear in terminals and logs.
    generated = is_made(settings)
    token = broker.token if generated else "$TOKEN"
    pages = {"console": settings.console, "docs": settings.docs}
    served = ", ".join(f"{broker.url}/{name}" for name, is_on in pages.items() if is_on)
    return f"""{warning}
  kernelbroker is at   {broker.url}
  token                {token if generated else "as configured"}
  isolation            {_isolation(broker)}
  in a browser         {served or "nothing: console and docs are off"}

  Try in another terminal:

    .venv/bin/kernelbroker exec 'print("hello")'
    make demo
    curl -N -H "Authorization: Bearer {token}" \\
         -d '{{"code": "for i in range(3): print(i)"}}' {broker.url}/api/v1/exec
"""


def _isolation(broker: Broker) -> str:
    """The isolation of each backend, that of the default one first."""
    backends = broker.backends.by_name.values()
    return ", ".join(dict.fromkeys(backend.isolation.value for backend in backends))


if __name__ == "__main__":
    sys.exit(main())
