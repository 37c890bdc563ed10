"""The part of the command line that deals with the files of a session."""

from __future__ import annotations

import argparse
import posixpath
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from .client import Broker
from .files import Files
from .protocol.codec import encode
from .protocol.errors import BadRequest, NotFound
from .session import Session
from .terminal import harmless


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `files`."""
    files = commands.add_parser("files", help="list and copy the files of a session")
    files.add_argument(
        "--session",
        metavar="ID",
        help="the session that get, put, rm and a PATH without a session mean; "
        "opened if necessary, and kept",
    )
    actions = files.add_subparsers(dest="action", required=True)
    ls = actions.add_parser("ls", help="list a directory")
    ls.add_argument(
        "path", nargs="?", default="", help="SESSION or SESSION:PATH; with --session a PATH"
    )
    ls.add_argument(
        "-r", "--recursive", action="store_true", help="list the directories below as well"
    )
    ls.add_argument("--json", action="store_true", help="print each entry as a line of JSON")
    cp = actions.add_parser("cp", help="copy files into a session or out of it")
    cp.add_argument("source", nargs="+", help="a file, or SESSION:PATH")
    cp.add_argument(
        "target", help="a file or directory, or SESSION:PATH; a session is opened if necessary"
    )
    cp.add_argument(
        "-r", "--recursive", action="store_true", help="copy directories with their content"
    )
    get = actions.add_parser("get", help="copy a file out of the workspace")
    get.add_argument("path", help="in the workspace")
    get.add_argument("local", nargs="?", type=Path, help="default: its own name")
    put = actions.add_parser("put", help="copy a file into the workspace")
    put.add_argument("local", type=Path, help="the file to copy")
    put.add_argument("path", nargs="?", help="default: its own name")
    rm = actions.add_parser("rm", help="delete a file or a directory")
    rm.add_argument("path", help="in the workspace")
    rm.add_argument(
        "-r", "--recursive", action="store_true", help="delete a directory with its content"
    )


@dataclass(frozen=True, slots=True)
class Remote:
    """A file or directory of a session; `path` is relative to the workspace."""

    session: str
    path: str
    is_directory: bool
    """Whether it was written with a slash at its end, or as the workspace itself."""

    @classmethod
    def parse(cls, text: str) -> Remote | None:
        """Parse `SESSION:PATH`; None for a local path, which has no colon, or a slash before it."""
        session, colon, path = text.partition(":")
        return cls.of(session, path) if colon and session and "/" not in session else None

    @classmethod
    def of(cls, session: str, path: str) -> Remote:
        if path == "/data" or path.startswith("/data/"):
            path = path.removeprefix("/data").lstrip("/")
        is_directory = path == "" or path.endswith(("/", "/."))
        return cls(session, posixpath.normpath(path.rstrip("/") or "."), is_directory)

    def beside(self, path: str) -> str:
        """A path below it."""
        return path if self.path == "." else f"{self.path}/{path}"


async def run(broker: Broker, args: argparse.Namespace) -> None:
    """Carry out `files`.

    Raises:
        BadRequest: an argument is missing.
        RequestError: the broker refused, see `Files`.
        OSError: a local file cannot be read or written.
    """
    if args.action == "cp":
        await _copy(broker, args)
        return
    if args.action == "ls":
        where = Remote.of(args.session, args.path) if args.session else Remote.parse(args.path)
        where = where or (Remote.of(args.path, "") if args.path else None)
        if where is None:
            raise BadRequest("say which session: `kernelbroker files ls SESSION:PATH`")
        async with _use(broker, where.session, opens=bool(args.session)) as session:
            await _list(session.files, where.path, args)
        return
    if not args.session:
        raise BadRequest(f"say which session: `kernelbroker files --session ID {args.action} …`")
    async with _use(broker, args.session, opens=True) as session:
        files = session.files
        match args.action:
            case "get":
                await files.download(args.path, args.local or Path(args.path).name)
            case "put":
                await files.upload(args.local, args.path)
            case "rm":
                await files.delete(args.path, recursive=args.recursive)


def _use(broker: Broker, session: str, *, opens: bool) -> AbstractAsyncContextManager[Session]:
    """A session that stays open. Only with `opens` it is opened if necessary."""
    return broker.session(session, keep=True) if opens else _Attached(broker, session)


class _Attached(AbstractAsyncContextManager[Session]):
    def __init__(self, broker: Broker, session: str) -> None:
        self._broker = broker
        self._id = session

    async def __aenter__(self) -> Session:
        self._session = await self._broker.attach(self._id)
        return self._session

    async def __aexit__(self, *exc: object) -> None:
        await self._session.close()


async def _list(files: Files, path: str, args: argparse.Namespace) -> None:
    listing = await files.list(path, recursive=args.recursive)
    for file in listing:
        mark = {"directory": "/", "symlink": "@"}.get(file.kind, "")
        line = f"{file.size:>12}  {file.modified_at:%Y-%m-%dT%H:%M:%S}  {file.path}{mark}"
        if args.json:
            line = encode(file).decode()
        print(harmless(line) if sys.stdout.isatty() else line)
    if listing.truncated:
        print("kernelbroker: there are more; list a directory below", file=sys.stderr)


async def _copy(broker: Broker, args: argparse.Namespace) -> None:
    target = Remote.parse(args.target)
    sources = [Remote.parse(source) for source in args.source]
    if target is None and all(sources):
        for source in filter(None, sources):
            async with _use(broker, source.session, opens=False) as session:
                await _fetch(session.files, source, args)
    elif target is not None and not any(sources):
        for name in args.source:
            Path(name).stat()  # raises OSError before a session is opened
        async with _use(broker, target.session, opens=True) as session:
            for name in args.source:
                await _send(session.files, Path(name), target, args)
    else:
        raise BadRequest(
            "one side is in a session (SESSION:PATH) and the other is local; "
            "a local name with a colon is written as ./NAME"
        )


async def _send(files: Files, source: Path, target: Remote, args: argparse.Namespace) -> None:
    into = target.is_directory or len(args.source) > 1 or await _is_directory(files, target.path)
    where = target.beside(source.resolve().name) if into else target.path
    if not source.is_dir():
        await files.upload(source, where)
        return
    _allowed(str(source), args)
    await files.mkdir(where)
    for path in sorted(source.rglob("*")):
        below = f"{where}/{path.relative_to(source).as_posix()}"
        if path.is_dir():
            await files.mkdir(below)
        elif path.is_file():
            await files.upload(path, below)


async def _fetch(files: Files, source: Remote, args: argparse.Namespace) -> None:
    target = Path(args.target)
    name = PurePosixPath(source.path).name or source.session
    into = args.target.endswith("/") or len(args.source) > 1 or target.is_dir()
    where = target / name if into else target
    if not await _is_directory(files, source.path):
        where.parent.mkdir(parents=True, exist_ok=True)
        await files.download(source.path, where)
        return
    _allowed(source.path, args)
    listing = await files.list(source.path, recursive=True)
    if listing.truncated:
        raise BadRequest(
            f"{source.path}: too many files to copy at once; copy the directories below"
        )
    where.mkdir(parents=True, exist_ok=True)
    for file in listing:
        below = where / PurePosixPath(file.path).relative_to(source.path)
        if not below.resolve().is_relative_to(where.resolve()):
            raise BadRequest(f"{file.path}: leads out of {where}")
        if file.kind == "directory":
            below.mkdir(parents=True, exist_ok=True)
        elif file.kind == "file":
            await files.download(file.path, below)


def _allowed(directory: str, args: argparse.Namespace) -> None:
    if not args.recursive:
        raise BadRequest(f"{directory}: is a directory; copy it with -r")


async def _is_directory(files: Files, path: str) -> bool:
    if path == ".":
        return True
    try:
        found = await files.list(path)
    except NotFound:
        return False
    return [entry.path for entry in found] != [path]
