"""The parts of the command line that deal with notebooks."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from . import notebook_file
from .client import Broker
from .results import ExecutionResult
from .session import Session
from .terminal import Renderer


def add_parsers(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command `notebook`."""
    notebook = commands.add_parser("notebook", help="write a session as a notebook")
    notebook.add_argument("session", help="the id of the session, which may have ended")
    notebook.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="default: standard output"
    )


async def write_notebook(broker: Broker, args: argparse.Namespace) -> None:
    notebook = await broker.notebook(args.session)
    if args.output is not None:
        notebook_file.write(notebook, args.output)
        return
    json.dump(notebook, sys.stdout, indent=1, ensure_ascii=sys.stdout.isatty())
    print()


async def run_notebook(session: Session, args: argparse.Namespace) -> ExecutionResult | None:
    """Run a notebook and write it back. Returns the result of the cell that failed, if one did."""
    source: Path = args.file
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
            env=args.env,
            confirm=args.confirm,
            allow_errors=args.allow_errors,
            on_cell=on_cell,
        )
    finally:  # also what ran before an error
        notebook_file.write(notebook, target)
        renderer.remark(f"written: {target}")
