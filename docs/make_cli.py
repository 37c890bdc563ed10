"""Writes docs/cli.md from the commands themselves: each with its arguments and options.

    make docs

A test fails if the page is not up to date.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from kernelbroker import cli
from kernelbroker_server import __main__ as server

PAGE = Path(__file__).with_name("cli.md")

_INTRODUCTION = """# Commands

*Made from the commands by `make docs`; do not edit.*

`kernelbroker` is the client: the SDK brings it. It finds a broker of the same user by itself; elsewhere set
`KERNELBROKER_URL` and `KERNELBROKER_TOKEN`. Its status is 0; that of the code, if it ended itself
(`sys.exit(7)`, a shell's `exit 5`); 1 if the code failed; 2 if the command could not do its work; 124 if
the cell ran longer than `--timeout`; and 130 after Ctrl-C. `source <(kernelbroker completion bash)`
completes commands and options, in zsh and fish likewise (`kernelbroker[cli]` has what it needs).
`NO_COLOR` turns colours off.
`kernelbroker-server` is the broker.
"""


def page() -> str:
    """Return the text of docs/cli.md."""
    parts = [_INTRODUCTION, *_described(cli.parser()), *_described(server._parser())]
    return "\n".join(parts).rstrip() + "\n"


def _described(parser: argparse.ArgumentParser, about: str = "", depth: int = 2) -> list[str]:
    """A command, and those below it."""
    lines = [f"{'#' * depth} {parser.prog}", ""]
    if text := about or parser.description or "":
        lines += [f"{text[0].upper()}{text[1:].rstrip('.')}.", ""]
    commands: list[str] = []
    rows: list[str] = []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            meanings = {each.dest: each.help or "" for each in action._choices_actions}
            # The first name of each command; further ones are aliases.
            names = {id(command): name for name, command in reversed(action.choices.items())}
            for name, command in action.choices.items():
                if names[id(command)] != name:
                    continue
                commands += _described(command, meanings.get(name, ""), min(depth + 1, 4))
        elif not isinstance(action, argparse._HelpAction):
            rows.append(f"| {_named(action)} | {_meaning(action)} |")
    if rows:
        lines += ["| argument | meaning |", "|---|---|", *rows, ""]
    return lines + commands


def _named(action: argparse.Action) -> str:
    takes_value = action.nargs != 0
    value = action.metavar or ("" if action.choices else action.dest.upper())
    if action.choices:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    if not action.option_strings:
        name = str(action.metavar or action.dest).upper()
        return f"`[{name}]`" if action.nargs == "?" else f"`{name}`"
    suffix = f" {value}" if takes_value else ""
    return ", ".join(f"`{option}{suffix}`" for option in action.option_strings)


def _meaning(action: argparse.Action) -> str:
    text = (action.help or "").replace("|", "\\|")
    shown = action.default not in (None, False, [], "", ".", argparse.SUPPRESS)
    if not shown or "default" in text:
        return text
    return f"{text}; default: `{action.default}`".removeprefix("; ")


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
