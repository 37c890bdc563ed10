"""The command line: run a cell from the shell, transfer files, and check the broker.

    kernelbroker exec 'print(1 + 1)'
    kernelbroker exec script.py --session work
    kernelbroker exec --result-var df < script.py
    kernelbroker exec analysis.ipynb
    kernelbroker sessions list
    kernelbroker attach work
    kernelbroker notebook work -o work.ipynb
    kernelbroker workspaces
    kernelbroker files cp data.csv work:/data/
    kernelbroker assess script.py
    kernelbroker mcp --root ~/data
    kernelbroker health
    kernelbroker doctor
    kernelbroker completion bash

Exit status: 0 success; that of the code, if it ended itself (`sys.exit(7)`, a shell's `exit 5`); 1 the cell
failed or the assessed code is high or critical; 2 the broker could not be used, or refused; 124 the cell
ran longer than its timeout; 130 interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import io
import json
import os
import re
import shlex
import signal
import sys
import termios
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import get_args

from . import __version__, cli_files, cli_notebooks, cli_operating, cli_sessions, mcp_stdio
from .client import Broker, connect
from .notebook_file import InvalidNotebook
from .protocol import events
from .protocol.codec import encode
from .protocol.errors import BadRequest, ConfirmationRequired, KernelBrokerError
from .protocol.findings import Language, RuleSet, at_least
from .protocol.visible import visible
from .results import ExecutionResult
from .risk import assess
from .session import Session
from .terminal import Renderer, harmless

FAILED, UNUSABLE, TIMED_OUT, INTERRUPTED = 1, 2, 124, 130
"""124 is that of `timeout(1)`, 130 that of a shell whose program ended by SIGINT."""
_LANGUAGES: dict[str, Language] = {
    ".js": "javascript",
    ".mjs": "javascript",
    ".cjs": "javascript",
    ".sh": "shell",
    ".bash": "shell",
}
_FILE_NAME = re.compile(r"[\w./~-]+\.(?:py|ipynb|js|mjs|cjs|sh|bash)")
"""What is meant as a file, also if it does not exist."""
_SHELLS = ("bash", "zsh", "fish")


def main(argv: Sequence[str] | None = None) -> int:
    """The `kernelbroker` command; returns its exit status."""
    top = parser()
    if "_ARGCOMPLETE" in os.environ:  # set by what `completion` prints
        _complete(top)
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
        if args.command == "completion":
            return _print_completion(args.shell)
        if args.command == "exec":
            _read_code(args)
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


def _complete(top: argparse.ArgumentParser) -> None:
    """Print what the words of a command line can go on with, and exit."""
    with suppress(ImportError):  # then nothing is completed
        import argcomplete  # imported here: it takes longer than all others

        argcomplete.autocomplete(top)


def _print_completion(shell: str) -> int:
    """Print a shell's script. Raises NotInstalled without the package that completes."""
    try:
        from argcomplete.shell_integration import shellcode
    except ImportError as exc:
        raise cli_operating.NotInstalled(
            f"completion needs argcomplete: {shlex.quote(sys.executable)} -m pip install argcomplete"
        ) from exc
    print(shellcode(["kernelbroker"], shell=shell))
    return 0


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
        help="the code, or a file with it (NAME.py, NAME.ipynb, NAME.sh, NAME.js); "
        "'-' or no argument reads code from stdin",
    )
    source.add_argument(
        "-f", "--file", type=Path, help="read the code, or a notebook, from this file"
    )
    execute.add_argument("--session", metavar="ID", help="run in this session, and keep it")
    execute.add_argument(
        "--workspace", metavar="NAME", help="use the files of this workspace, and keep them"
    )
    execute.add_argument(
        "--template", metavar="NAME", default="default", help="that of a new session's sandbox"
    )
    execute.add_argument(
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="an environment variable of the code; its value here if VALUE is left out; repeatable",
    )
    execute.add_argument(
        "--language",
        choices=get_args(Language),
        help="that of the code; default: by the file's name, else the session's",
    )
    execute.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="interrupt the cell after this time"
    )
    execute.add_argument(
        "--confirm",
        action="store_true",
        help="run it also if a policy wants a confirmation; default: ask, on a terminal",
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

    cli_sessions.add_parsers(commands)
    cli_files.add_parsers(commands)
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
        choices=("all", "code", "analysis", "project", "browser"),
        default="all",
        help="the set of tools; default: all that the broker has",
    )
    cli_notebooks.add_parsers(commands)
    cli_operating.add_parsers(commands)
    health = commands.add_parser("health", help="print the health of the broker as JSON")
    health.add_argument("--json", action="store_true", help="JSON, as without it")
    completion = commands.add_parser(
        "completion", help="print the script by which a shell completes this command"
    )
    completion.add_argument("shell", choices=_SHELLS)
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
    if args.command in _WITH_BROKER:
        async with connect(args.url) as broker:
            await _WITH_BROKER[args.command](broker, args)
        return 0
    show, remark = _outputs(args)
    if args.command == "attach":
        async with connect(args.url) as broker:
            await cli_sessions.attach(broker, args, show)
        return 0
    retention = 0 if args.session is None and args.workspace is None else None
    async with (
        connect(args.url) as broker,
        broker.session(
            args.session,
            template=args.template,
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
    """Run the code; if a policy wants a confirmation, ask for it, and run it once more.

    Raises:
        ConfirmationRequired: there is nobody to ask, or the answer is no.
    """
    try:
        return await _run_once(session, args, show, None)
    except ConfirmationRequired as exc:
        if not args.confirm and not await _confirmed(exc):
            raise
        return await _run_once(session, args, show, exc.confirmation)


async def _run_once(
    session: Session,
    args: argparse.Namespace,
    show: Callable[[events.Event], None],
    confirmation: str | None,
) -> int:
    stream = session.stream(
        args.code,
        language=args.language,
        timeout=args.timeout,
        env=args.env,
        result_var=args.result_var,
        preview_rows=args.preview_rows,
        on_disconnect="interrupt",
        confirm=confirmation,
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
                if status == 0 and _lacks(args.result_var, event):
                    print(f"kernelbroker: there is no variable {args.result_var}", file=sys.stderr)
                    status = FAILED
    return status


def _status(result: events.Result | ExecutionResult | None) -> int:
    """The exit status for a result; None stands for success."""
    if result is None or result.success:
        return 0
    cause = None if result.error_detail is None else result.error_detail.cause
    match cause:
        case "interrupted":
            return INTERRUPTED
        case "timeout":
            return TIMED_OUT
    if result.exit_code is None:
        return FAILED
    ended_by = result.exit_code
    return 128 - ended_by if ended_by < 0 else ended_by & 0xFF or FAILED


def _lacks(name: str | None, result: events.Result) -> bool:
    """Whether the variable that the caller wants to see does not exist: the kernel's words for it."""
    report = None if result.truncated is None else result.truncated.report
    return name is not None and (report or "").startswith("no variable named ")


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


def _read_code(args: argparse.Namespace) -> None:
    """Set `code`, `language` and `env` of `exec`, and whether `file` is a notebook.

    Raises:
        BadRequest: a variable has no value here.
        OSError, UnicodeError: the file cannot be read.
    """
    text = args.code
    if args.file is None and text is not None and _is_file(text, args.language):
        args.file = Path(os.path.expanduser(text))  # noqa: PTH111 - see `_is_file`
    args.env = dict(map(_variable, args.env))
    args.is_notebook = args.file is not None and args.file.suffix == ".ipynb"
    if args.file is not None and not args.is_notebook:
        args.code = args.file.read_text("utf-8")
        args.language = args.language or _LANGUAGES.get(args.file.suffix)
    elif text in (None, "-") and not args.is_notebook:
        if sys.stdin.isatty():
            print("kernelbroker: type the code, and Ctrl-D at its end", file=sys.stderr)
        args.code = sys.stdin.read()


def _is_file(text: str, language: str | None) -> bool:
    """Whether the argument of `exec` names a file and is no code."""
    is_name = _FILE_NAME.fullmatch(text) is not None
    if not is_name and "/" not in text:
        return False
    # `Path` raises for code that is no path: a name that is too long, `~a / b`.
    exists = os.path.isfile(os.path.expanduser(text))  # noqa: PTH111, PTH113
    # In a given language `./build.sh` may be a command, for a file of the session.
    return exists or (is_name and language is None)


def _variable(text: str) -> tuple[str, str]:
    name, is_given, value = text.partition("=")
    if not is_given and name not in os.environ:
        raise BadRequest(f"--env {name}: it is not set here; say --env {name}=VALUE")
    return name, value if is_given else os.environ[name]


async def _confirmed(asked: ConfirmationRequired) -> bool:
    """Ask the person at the terminal; without one the answer is no."""
    print(f"kernelbroker: {visible(asked.message)}", file=sys.stderr)
    for found in asked.findings:
        print(visible(f"  line {found.line}: {found.level}: {found.reason}"), file=sys.stderr)
    if not sys.stdin.isatty():
        print("kernelbroker: to run it anyway: --confirm", file=sys.stderr)
        return False
    answer = await _line("Run it? [y/N] ", hidden=False)
    return answer.strip().lower() in ("y", "yes")


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
    return await _line(event.prompt, hidden=event.password)


async def _line(prompt: str, *, hidden: bool) -> str:
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def read() -> None:
        if not line.done():
            line.set_result(sys.stdin.readline())

    print(harmless(prompt), end="", file=sys.stderr, flush=True)
    loop.add_reader(sys.stdin, read)
    try:
        with _hidden() if hidden else nullcontext():
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


_WITH_BROKER: dict[str, Callable[[Broker, argparse.Namespace], Awaitable[None]]] = {
    "sessions": cli_sessions.sessions,
    "workspaces": cli_sessions.workspaces,
    "files": cli_files.run,
    "notebook": cli_notebooks.write_notebook,
}
"""The commands that end with status 0 if they could be carried out."""

if __name__ == "__main__":
    sys.exit(main())
