"""The parts of the command line that deal with whole sessions: notebooks, and following a session."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

from . import notebook_file
from .client import Broker
from .protocol import events
from .results import ExecutionResult
from .session import Session
from .terminal import Renderer, harmless


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands `notebook` and `attach`."""
    notebook = commands.add_parser("notebook", help="write a session as a notebook")
    notebook.add_argument("session", help="the id of the session, which may have ended")
    notebook.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: standard output"
    )
    attach = commands.add_parser(
        "attach", help="follow a session: what all its clients run, until it ends or Ctrl-C"
    )
    attach.add_argument("session", help="the id of the session")
    attach.add_argument("--images", type=Path, metavar="DIR", help="save pictures here")
    attach.add_argument("--json", action="store_true", help="print each event as a line of JSON")


async def write_notebook(broker: Broker, args: argparse.Namespace) -> None:
    notebook = await broker.notebook(args.session)
    if args.output is not None:
        notebook_file.write(notebook, args.output)
        return
    json.dump(notebook, sys.stdout, indent=1, ensure_ascii=sys.stdout.isatty())
    print()


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


async def run_notebook(session: Session, args: argparse.Namespace) -> ExecutionResult | None:
    """Run a notebook and write it back. Returns the result of the cell that failed, if one did."""
    source = Path(args.code)
    notebook = notebook_file.read(source)
    notebook_file.language_of(notebook)
    target = args.output or source
    renderer = Renderer(sys.stdout, sys.stderr, images=args.images, environ=os.environ)

    def on_cell(number: int, count: int, result: ExecutionResult | None) -> None:
        if result is None:
            renderer.remark(f"cell {number} of {count}")
        elif result.error:
            renderer.remark(f"cell {number} failed: {result.error}")

    try:
        return await notebook_file.run(
            notebook,
            session,
            timeout=args.timeout,
            allow_errors=args.allow_errors,
            on_cell=on_cell,
        )
    finally:  # also what ran before an error
        notebook_file.write(notebook, target)
        renderer.remark(f"written: {target}")


def is_notebook(args: argparse.Namespace) -> bool:
    """Whether the argument of `exec` is the name of a notebook."""
    code = args.code
    return isinstance(code, str) and code.endswith(".ipynb") and "\n" not in code
