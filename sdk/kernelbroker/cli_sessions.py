"""The parts of the command line that deal with whole sessions: a list of them, and following one."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from .client import Broker
from .protocol import events
from .protocol.codec import encode
from .protocol.messages import SessionInfo, WorkspaceInfo
from .terminal import aligned_rows, harmless

_Described = TypeVar("_Described", SessionInfo, WorkspaceInfo)


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `sessions`, `attach` and `workspaces`."""
    sessions = commands.add_parser("sessions", help="list, show, follow and close sessions")
    actions = sessions.add_subparsers(dest="action", required=True)
    listing = actions.add_parser("list", aliases=["ls"], help="list the open sessions")
    listing.add_argument("--json", action="store_true", help="print each as a line of JSON")
    show = actions.add_parser("show", help="show one session")
    show.add_argument("session", help="its id")
    show.add_argument("--json", action="store_true", help="print it as JSON")
    close = actions.add_parser("close", help="close sessions, whoever opened them")
    close.add_argument("sessions", nargs="+", metavar="SESSION", help="their ids")
    follow = actions.add_parser("attach", help="follow a session, as `kernelbroker attach` does")
    follow.set_defaults(command="attach")
    _following(follow)
    attach = commands.add_parser(
        "attach", help="follow a session: what all its clients run, until it ends or Ctrl-C"
    )
    _following(attach)
    workspaces = commands.add_parser("workspaces", help="list the workspaces")
    workspaces.add_argument("--delete", metavar="NAME", help="delete this workspace instead")
    workspaces.add_argument(
        "--json", action="store_true", help="print each as a line of JSON, as in a pipe"
    )


def _following(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("session", help="the id of the session")
    parser.add_argument("--images", type=Path, metavar="DIR", help="save pictures here")
    parser.add_argument("--json", action="store_true", help="print each event as a line of JSON")


async def sessions(broker: Broker, args: argparse.Namespace) -> None:
    """Carry out `sessions list`, `show` or `close`.

    Raises:
        NotFound, SessionGone: `show` or `close` names a session that is not open.
    """
    match args.action:
        case "list" | "ls":
            _print(await broker.sessions(), args.json, _session_row, _SESSION_COLUMNS)
        case "show":
            answer = await broker._get(f"/api/v1/sessions/{quote(args.session, safe='')}")
            info = msgspec.convert(answer, SessionInfo)
            if args.json:
                print(encode(info).decode())
                return
            known = {name: _value(value) for name, value in msgspec.to_builtins(info).items()}
            rows = [[name.replace("_", " "), value] for name, value in known.items() if value]
            print("\n".join(aligned_rows(rows)))
        case "close":
            for session in args.sessions:
                await broker.close_session(session)


async def workspaces(broker: Broker, args: argparse.Namespace) -> None:
    """Carry out `workspaces`.

    Raises:
        NotFound, Conflict: the workspace to delete does not exist, or is in use.
    """
    if args.delete is not None:
        await broker.delete_workspace(args.delete)
        return
    as_json = args.json or not sys.stdout.isatty()
    _print(await broker.workspaces(), as_json, _workspace_row, _WORKSPACE_COLUMNS)


async def attach(
    broker: Broker, args: argparse.Namespace, show: Callable[[events.Event], None]
) -> None:
    """Show what runs in a session, until it ends."""
    async with aclosing(broker.follow(args.session)) as following:
        async for event in following:
            if isinstance(event, events.Started) and not args.json:
                handle = await broker.attach_execution(event.execution_id)
                code = await handle.code()
                count = "" if event.execution_count is None else event.execution_count
                text = f"In [{count}]: " + code.rstrip("\n").replace("\n", "\n    ")
                print(harmless(text) if sys.stdout.isatty() else text, flush=True)
            show(event)


_SESSION_COLUMNS = ["SESSION", "STATE", "TEMPLATE", "ISOLATION", "CELLS", "WAITING", "LAST ACTIVE"]
_WORKSPACE_COLUMNS = ["WORKSPACE", "BYTES", "FILES", "LAST USED", "EXPIRES", "SESSION"]
_TIME = "%Y-%m-%dT%H:%M:%SZ"


def _session_row(info: SessionInfo) -> list[str]:
    return [
        *(info.session_id, info.state, info.runs_in or info.template, info.isolation),
        *(str(info.executions), str(info.queued), f"{info.last_active_at:{_TIME}}"),
    ]


def _workspace_row(info: WorkspaceInfo) -> list[str]:
    return [
        *(info.name, _value(info.size), _value(info.files), f"{info.last_used_at:{_TIME}}"),
        "" if info.expires_at is None else f"{info.expires_at:{_TIME}}",
        info.session_id or "",
    ]


def _print(
    found: list[_Described],
    as_json: bool,
    row: Callable[[_Described], list[str]],
    columns: list[str],
) -> None:
    lines = (
        [encode(each).decode() for each in found]
        if as_json
        else aligned_rows([columns, *map(row, found)])
    )
    for line in lines:
        print(harmless(line) if sys.stdout.isatty() else line)


def _value(value: object) -> str:
    """A value of JSON as text; nothing for what is absent or empty."""
    if value is None or value == [] or value == {}:
        return ""
    return value if isinstance(value, str) else encode(value).decode()
