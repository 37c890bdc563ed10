"""The command line: run a cell from the shell, transfer files, and check the broker.

    kernelbroker exec 'print(1 + 1)'
    kernelbroker exec -f script.py --session work
    kernelbroker exec --result-var df < script.py
    kernelbroker exec analysis.ipynb
    kernelbroker attach work
    kernelbroker notebook work -o work.ipynb
    kernelbroker workspaces
    kernelbroker files --session work put data.csv
    kernelbroker assess script.py
    kernelbroker mcp --root ~/data
    kernelbroker health
    kernelbroker doctor

Exit status: 0 success, 1 the cell failed or the assessed code is high or critical, 2 the broker could not
be used, 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import signal
import sys
import termios
from collections.abc import Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import get_args

from . import __version__, cli_notebooks, cli_operating, mcp_stdio
from .client import connect
from .files import Files
from .notebook_file import InvalidNotebook
from .protocol import events
from .protocol.codec import encode
from .protocol.errors import KernelBrokerError
from .protocol.findings import Language, RuleSet, at_least
from .results import ExecutionResult
from .risk import assess
from .session import Session
from .terminal import Renderer, harmless

FAILED, UNUSABLE, INTERRUPTED = 1, 2, 130
_LANGUAGES: dict[str, Language] = {
    ".js": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".sh": "shell",
    ".bash": "shell",
}


def main(argv: Sequence[str] | None = None) -> int:
    """The `kernelbroker` command; returns its exit status."""
    top = parser()
    args, others = top.parse_known_args(argv)
    if others and args.command not in cli_operating.COMMANDS:
        top.error(f"unrecognized arguments: {' '.join(others)}")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # Lone surrogates are no reason to fail.
    try:
        if args.command in cli_operating.COMMANDS:
            return cli_operating.run(args.command, others)
        if args.command == "assess":
            return _assess(args)
        if args.command == "exec":
            args.is_notebook = args.file is None and cli_notebooks.is_notebook(args)
            if not args.is_notebook:
                args.code = _code(args)
        return asyncio.run(run(args))
    except (KernelBrokerError, OSError, UnicodeError, InvalidNotebook) as exc:
        if isinstance(exc, BrokenPipeError):
            # The reader has closed the pipe, for example `head`. Avoid another error at exit.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return FAILED
        print(f"kernelbroker: {exc}", file=sys.stderr)
        return UNUSABLE
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="kernelbroker", description="Run code in a sandbox.")
    top.add_argument("--version", action="version", version=f"kernelbroker {__version__}")
    top.add_argument(
        "--url",
        help="the broker's URL; default: KERNELBROKER_URL, or a running broker of this user",
    )
    commands = top.add_subparsers(dest="command", required=True)

    execute = commands.add_parser("exec", help="run a cell and print its output")
    source = execute.add_mutually_exclusive_group()
    source.add_argument(
        "code",
        nargs="?",
        help="the code, or NAME.ipynb, a notebook to run; '-' or no argument reads code from stdin",
    )
    source.add_argument("-f", "--file", type=Path, help="read the code from a file")
    execute.add_argument("--session", metavar="ID", help="run in this session, and keep it")
    execute.add_argument(
        "--workspace", metavar="NAME", help="use the files of this workspace, and keep them"
    )
    execute.add_argument(
        "--language",
        choices=("python", "shell", "javascript"),
        default="python",
        help="that of the code; default: python",
    )
    execute.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="interrupt the cell after this time"
    )
    execute.add_argument("--result-var", metavar="NAME", help="show this variable at the end")
    execute.add_argument(
        "--preview-rows", type=int, default=10, metavar="N", help="rows of a table to show"
    )
    execute.add_argument(
        "--images",
        type=Path,
        metavar="DIR",
        help="save pictures here; default: inline in iTerm2 and kitty, else the current directory",
    )
    execute.add_argument("--json", action="store_true", help="print each event as a line of JSON")
    execute.add_argument(
        "--output", type=Path, metavar="FILE", help="write the notebook here; default: in place"
    )
    execute.add_argument(
        "--allow-errors", action="store_true", help="go on behind a cell of a notebook that fails"
    )

    workspaces = commands.add_parser("workspaces", help="list the workspaces as lines of JSON")
    workspaces.add_argument("--delete", metavar="NAME", help="delete this workspace instead")
    files = commands.add_parser("files", help="list and transfer the files of a session")
    files.add_argument(
        "--session", metavar="ID", required=True, help="the session; opened if necessary, and kept"
    )
    actions = files.add_subparsers(dest="action", required=True)
    ls = actions.add_parser("ls", help="list a directory")
    ls.add_argument("path", nargs="?", default=".", help="default: the workspace")
    ls.add_argument(
        "-r", "--recursive", action="store_true", help="list the directories below as well"
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
    assessing = commands.add_parser(
        "assess", help="assess code without running it; needs no broker"
    )
    assessing.add_argument("file", help="a file with the code; '-' reads it from stdin")
    assessing.add_argument(
        "--language", choices=get_args(Language), help="default: by the file's name, else python"
    )
    assessing.add_argument(
        "--rules", choices=get_args(RuleSet), default="agent", help="the rule set (default: agent)"
    )
    assessing.add_argument("--json", action="store_true", help="print the assessment as JSON")

    serving = commands.add_parser(
        "mcp", help="serve MCP on stdin and stdout, for clients that start their servers"
    )
    serving.add_argument(
        "--root",
        type=Path,
        action="append",
        default=[],
        metavar="DIR",
        help="a directory below which upload_file and download_file may read and write; repeatable",
    )
    serving.add_argument(
        "--tools",
        choices=("all", "code", "analysis", "project"),
        default="all",
        help="the set of tools; default: all that the broker has",
    )
    cli_notebooks.add_parsers(commands)
    cli_operating.add_parsers(commands)
    commands.add_parser("health", help="print the health of the broker as JSON")
    return top


async def run(args: argparse.Namespace) -> int:
    """Carry out a parsed command line, whose `code` is the code itself.

    Raises:
        KernelBrokerError: the broker could not be used.
        OSError: a picture could not be written.
    """
    if args.command == "health":
        async with connect(args.url) as broker:
            print(json.dumps(await broker.health(), indent=2))
        return 0
    if args.command == "mcp":
        path = "/mcp" if args.tools == "all" else f"/mcp/{args.tools}"
        await mcp_stdio.serve(args.url, args.root, path)
        return 0
    if args.command == "workspaces":
        async with connect(args.url) as broker:
            if args.delete is not None:
                await broker.delete_workspace(args.delete)
            else:
                for workspace in await broker.workspaces():
                    print(encode(workspace).decode())
        return 0
    if args.command == "files":
        async with connect(args.url) as broker, broker.session(args.session, keep=True) as session:
            await _files(session.files, args)
        return 0
    if args.command == "notebook":
        async with connect(args.url) as broker:
            await cli_notebooks.write_notebook(broker, args)
        return 0
    show, remark = _outputs(args)
    if args.command == "attach":
        async with connect(args.url) as broker:
            await cli_notebooks.attach(broker, args, show)
        return 0
    retention = 0 if args.session is None and args.workspace is None else None
    async with (
        connect(args.url) as broker,
        broker.session(
            args.session,
            workspace=args.workspace,
            workspace_retention=retention,
            keep=args.session is not None,
        ) as session,
    ):
        with _interrupting(session, remark):
            if args.is_notebook:
                return _status(await cli_notebooks.run_notebook(session, args))
            return await _execute(session, args, show)


async def _execute(
    session: Session, args: argparse.Namespace, show: Callable[[events.Event], None]
) -> int:
    stream = session.stream(
        args.code,
        language=args.language,
        timeout=args.timeout,
        result_var=args.result_var,
        preview_rows=args.preview_rows,
        on_disconnect="interrupt",
        allow_stdin=sys.stdin.isatty(),
    )
    status = FAILED
    async with aclosing(stream):
        async for event in stream:
            show(event)
            if isinstance(event, events.Input):
                await session.stdin(event.execution_id, await _answer(event))
            elif isinstance(event, events.Result):
                status = _status(event)
    return status


def _status(result: events.Result | ExecutionResult | None) -> int:
    """The exit status for a result; None stands for success."""
    if result is None or result.success:
        return 0
    detail = result.error_detail
    return INTERRUPTED if detail is not None and detail.cause == "interrupted" else FAILED


async def _files(files: Files, args: argparse.Namespace) -> None:
    match args.action:
        case "ls":
            listing = await files.list(args.path, recursive=args.recursive)
            for file in listing:
                mark = {"directory": "/", "symlink": "@"}.get(file.kind, "")
                line = f"{file.size:>12}  {file.modified_at:%Y-%m-%dT%H:%M:%S}  {file.path}{mark}"
                print(harmless(line) if sys.stdout.isatty() else line)
            if listing.truncated:
                print("kernelbroker: there are more; list a directory below", file=sys.stderr)
        case "get":
            await files.download(args.path, args.local or Path(args.path).name)
        case "put":
            await files.upload(args.local, args.path)
        case "rm":
            await files.delete(args.path, recursive=args.recursive)


def _assess(args: argparse.Namespace) -> int:
    """Print the assessment of a file; returns the exit status.

    Raises:
        KernelBrokerError: the parser of the language is not installed.
        OSError, UnicodeError: the file cannot be read.
    """
    code = sys.stdin.read() if args.file == "-" else Path(args.file).read_text("utf-8")
    language = args.language or _LANGUAGES.get(Path(args.file).suffix, "python")
    assessment = assess(code, language, rules=args.rules)
    if args.json:
        print(encode(assessment).decode())
    else:
        for found in assessment.findings:
            where = f"{args.file}:{found.line}:{found.column}"
            print(harmless(f"{where}: {found.level}: {found.reason} [{found.rule}]"))
        confirm = "ask a person" if assessment.requires_confirmation else "no need to ask"
        print(f"{confirm}; suggested sandbox: {assessment.suggested_sandbox}")
        print(assessment.level)
    return FAILED if at_least(assessment.level, "high") else 0


def _code(args: argparse.Namespace) -> str:
    if args.file is not None:
        return str(args.file.read_text("utf-8"))
    if args.code in (None, "-"):
        return sys.stdin.read()
    return str(args.code)


def _outputs(
    args: argparse.Namespace,
) -> tuple[Callable[[events.Event], None], Callable[[str], None]]:
    """The functions that show an event and that write a note."""
    renderer = Renderer(sys.stdout, sys.stderr, images=args.images, environ=os.environ)
    if not args.json:
        return renderer.show, renderer.remark

    def show_json(event: events.Event) -> None:
        line = encode(event).decode()
        print(harmless(line) if sys.stdout.isatty() else line, flush=True)

    return show_json, renderer.remark


@contextmanager
def _interrupting(session: Session, remark: Callable[[str], None]) -> Iterator[None]:
    """Ctrl-C interrupts the cell, the second one leaves."""
    loop = asyncio.get_running_loop()
    leaving = asyncio.current_task()
    assert leaving is not None
    interrupts: list[asyncio.Task[None]] = []

    async def interrupt() -> None:
        with suppress(KernelBrokerError):  # The stream fails as well, and says so.
            await session.interrupt()

    def on_sigint() -> None:
        if interrupts:
            leaving.cancel()
        else:
            interrupts.append(asyncio.create_task(interrupt()))
            remark("interrupting; once more to leave")

    loop.add_signal_handler(signal.SIGINT, on_sigint)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)
        for task in interrupts:
            task.cancel()


async def _answer(event: events.Input) -> str:
    """A line from the terminal for `input()`."""
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(sys.stdin.readline())

    print(harmless(event.prompt), end="", file=sys.stderr, flush=True)
    loop.add_reader(sys.stdin, read)
    try:
        with _hidden() if event.password else nullcontext():
            return (await line).rstrip("\n")
    finally:
        loop.remove_reader(sys.stdin)


@contextmanager
def _hidden() -> Iterator[None]:
    """Switch off the echo of the terminal."""
    before = termios.tcgetattr(sys.stdin)
    silent = [*before]
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


if __name__ == "__main__":
    sys.exit(main())
