"""Cells give the outputs that they give on a stock kernel, but for what docs/notebooks.md names.

The notebooks are in `notebooks/`, in the percent format of IPython scripts. `# %% differs: NAME` begins a
cell in which a difference of the docs' table shows.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import kernelbroker
import pytest
from kernelbroker.protocol.events import CHART_MIME
from kernelbroker_server.config_sections import SandboxSettings

from tests.e2e.support import KERNEL_PYTHON, ROOT, BrokerProcess, running_broker, whole_system

pytestmark = whole_system

Output: TypeAlias = dict[str, Any]
Outputs: TypeAlias = list[Output]

DOCS = ROOT / "docs" / "notebooks.md"
STOCK = Path(__file__).with_name("notebook_on_stock.py")
NOTEBOOKS = sorted(Path(__file__).with_name("notebooks").glob("*.ipy"))

ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\-_])?")
CHANGING = [
    (re.compile(r"0x[0-9a-f]{6,}"), "0x…"),
    (re.compile(r"ipykernel_\d+"), "ipykernel"),
    (re.compile(r"(CPU times|Wall time|Compiler *): .*"), r"\1"),
    (re.compile(r"[\d.]+ [nµμm]?s ± [\d.]+ [nµμm]?s per loop"), "per loop"),
]
"""What is different in every run."""


@dataclass
class Cell:
    notebook: str
    number: int
    code: str
    differences: list[str]

    def __str__(self) -> str:
        return f"{self.notebook} [{self.number}]\n{self.code}"


def cells_of(notebook: Path) -> list[Cell]:
    """The cells of a notebook."""
    parts = re.split(r"^# %%(.*)\n", notebook.read_text(), flags=re.MULTILINE)[1:]
    return [
        Cell(notebook.stem, number, code.strip("\n"), re.findall(r"(?<=differs: )[\w-]+", title))
        for number, (title, code) in enumerate(zip(parts[::2], parts[1::2], strict=True), 1)
    ]


CELLS = {notebook.stem: cells_of(notebook) for notebook in NOTEBOOKS}


# Each function hides one difference, on both sides. It is named as in the docs' table.


def texts(replace: Callable[[str], str]) -> Callable[[Outputs], Outputs]:
    """Change all texts of streams and plain texts of displays; an empty stream disappears."""

    def change(outputs: Outputs) -> Outputs:
        changed = []
        for output in outputs:
            if output["output_type"] == "stream":
                output = {**output, "text": replace(output["text"])}
            elif "text/plain" in output.get("data", {}):
                plain = replace(output["data"]["text/plain"])
                output = {**output, "data": {**output["data"], "text/plain": plain}}
            if output.get("text") != "":
                changed.append(output)
        return changed

    return change


def without(pattern: str, replacement: str = "") -> Callable[[Outputs], Outputs]:
    return texts(lambda text: re.sub(pattern, replacement, text, flags=re.DOTALL))


def plain_tracebacks(outputs: Outputs) -> Outputs:
    return [
        {
            **output,
            "traceback": ANSI.sub("", "\n".join(output["traceback"])).rstrip("\n").split("\n"),
        }
        if output["output_type"] == "error"
        else output
        for output in outputs
    ]


def each_line_once(outputs: Outputs) -> Outputs:
    def lines(output: dict[str, Any]) -> list[str]:
        each = dict.fromkeys(output.get("traceback", []))
        return [
            line for line in each if not line.endswith("frames in the middle are not shown ...]")
        ]

    return [{**output, "traceback": lines(output)} for output in outputs]


def without_displays(outputs: Outputs) -> Outputs:
    return [output for output in outputs if output["output_type"] != "display_data"]


def first_of_each_picture(outputs: Outputs) -> Outputs:
    seen: set[str] = set()
    kept = []
    for output in outputs:
        picture = output.get("data", {}).get("image/png")
        if picture is None or picture not in seen:
            kept.append(output)
        seen.add(picture)
    return kept


def pictures_without_spaces(outputs: Outputs) -> Outputs:
    def compact(data: dict[str, Any]) -> dict[str, Any]:
        return {
            mime: "".join(value.split()) if mime == "image/png" else value
            for mime, value in data.items()
        }

    return [{**o, "data": compact(o["data"])} if "data" in o else o for o in outputs]


def without_charts(outputs: Outputs) -> Outputs:
    """Without the form and its formatter, which a cell can list."""
    listed = rf"ChartFormatter [^\n]*\nenabled = True\n|,\s+'{re.escape(CHART_MIME)}'(: \[\])?"
    return [
        {**o, "data": {mime: o["data"][mime] for mime in o["data"] if mime != CHART_MIME}}
        if "data" in o
        else o
        for o in without(listed)(outputs)
    ]


def groups_as_text(outputs: Outputs) -> Outputs:
    """An error that is a group as its traceback, without IPython's frame that ran the cell."""
    frame = r' +\| +File "[^"]*interactiveshell.py", line \d+, in run_code\n[^\n]*\n'
    return [
        {"output_type": "stream", "name": "stderr", "text": "\n".join(o["traceback"]) + "\n"}
        if o["output_type"] == "error" and "Exception Group Traceback" in o["traceback"][0]
        else o
        for o in without(frame)(outputs)
    ]


EVERYWHERE = {"plain-traceback": plain_tracebacks, "charts": without_charts}
DIFFERENCES: dict[str, Callable[[Outputs], Outputs]] = {
    "help": without_displays,
    "figure-once": first_of_each_picture,
    "exit-advice": without(r"[^\n]*To exit: use.*?stacklevel=1\)\n|[^\n]*'To exit: use'[^\n]*\n"),
    "broken-errors": lambda outputs: outputs[-1:],
    "exception-groups": groups_as_text,
    "recursion": each_line_once,
    "late-update": without_displays,
    "surrogates": lambda outputs: [],
    "base64": pictures_without_spaces,
    "arguments": without("(?s).*"),
    "colours": without(r"^\((None|'1'),\s+(None|'1'),\s+(None|'1'),\s+", "(None, None, None, "),
    "interrupts": without("^<.*>$"),
    "library-path": without(r"(/opt/kernelbroker/lib|/data/.packages[^\n]*)\n"),
    "prompt-replies": without(r"_execute_sleep = [^\n]*\n"),
    "history": without(
        r"enabled = \w+\nhist_file = .*\n(?=\w)|enabled = \w+\nhist_file = [^\n]*\n"
    ),
    "debugger": without(r" '(execfile|runfile)',\n| (None|'NO')\)$"),
    "hooks": without("(?s).*"),
} | EVERYWHERE


def hiding(names: Iterable[str], outputs: Outputs) -> Outputs:
    for name in names:
        outputs = DIFFERENCES[name](outputs)
    return joined(outputs)


def joined(outputs: Outputs) -> Outputs:
    """With texts of one stream that follow one another as one."""
    found: Outputs = []
    for output in outputs:
        last = found[-1] if found else {}
        if output["output_type"] == "stream" and last.get("name") == output["name"]:
            found[-1] = {**last, "text": last["text"] + output["text"]}
        else:
            found.append(output)
    return found


def comparable(value: Any, paths: dict[str, str]) -> Any:
    """Any JSON without what is different in every run."""
    if isinstance(value, list):
        return [comparable(each, paths) for each in value]
    if isinstance(value, dict):
        return {name: comparable(each, paths) for name, each in value.items()}
    if isinstance(value, str):
        for path, name in paths.items():
            value = value.replace(path, name)
        for pattern, name in CHANGING:
            value = pattern.sub(name, value)
    return value


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Outputs]]:
    """The outputs of each cell of each notebook on a stock kernel."""
    directory = tmp_path_factory.mktemp("stock")
    workspace, home = directory / "data", directory / "home"
    workspace.mkdir()
    home.mkdir()
    source, target = directory / "cells.json", directory / "outputs.json"
    source.write_text(json.dumps({n: [cell.code for cell in CELLS[n]] for n in CELLS}))
    with (directory / "log").open("wb") as log:
        subprocess.run(
            [KERNEL_PYTHON, STOCK, source, target],
            cwd=workspace,
            env={
                "HOME": str(home),
                "LANG": "C.UTF-8",
                "PATH": f"{KERNEL_PYTHON.parent}:/usr/local/bin:/usr/bin:/bin",
                "MPLCONFIGDIR": str(home / ".matplotlib"),
                "PYTHONDONTWRITEBYTECODE": "1",
                "SHELL": "/bin/sh",
                "USER": "sandbox",
            },
            stdout=log,
            stderr=log,
            check=False,
            timeout=280,
        )
    assert target.exists(), (directory / "log").read_text(errors="replace")
    paths = {str(workspace): "/data", str(home): "/home/sandbox"}
    paths[str(KERNEL_PYTHON.parent.parent)] = "/opt/kernelbroker/env"
    found = json.loads(target.read_text())
    return {name: comparable(outputs, paths) for name, outputs in found.items()}


async def outputs_of(broker: BrokerProcess, notebook: str) -> list[Outputs]:
    """The outputs of each cell of a notebook in a session of this broker."""
    async with (
        kernelbroker.connect(broker.url, broker.token) as client,
        client.session() as session,
    ):
        return [
            comparable((await session.run(cell.code, on_error="keep", timeout=60)).outputs, {})
            for cell in CELLS[notebook]
        ]


@pytest.fixture(scope="module")
def warm_broker() -> Iterator[BrokerProcess]:
    """A broker whose sandboxes have the modules of the default settings imported."""
    with running_broker(SANDBOX__IMPORTS=json.dumps(SandboxSettings().imports)) as broker:
        yield broker


@pytest.fixture(scope="module")
def ours(warm_broker: BrokerProcess) -> dict[str, list[Outputs]]:
    """The outputs of each cell of each notebook by the SDK."""
    return {name: asyncio.run(outputs_of(warm_broker, name)) for name in CELLS}


@pytest.mark.parametrize("notebook", CELLS)
def test_the_outputs_of_a_notebook(
    stock: dict[str, list[Outputs]], ours: dict[str, list[Outputs]], notebook: str
) -> None:
    """Each cell's outputs are those of a stock kernel, but for the differences that the cell names."""
    for cell, theirs, own in zip(CELLS[notebook], stock[notebook], ours[notebook], strict=True):
        names = [*EVERYWHERE, *cell.differences]
        assert hiding(names, own) == hiding(names, theirs), str(cell)
        for name in cell.differences:
            others = [other for other in names if other != name]
            assert hiding(others, own) != hiding(others, theirs), f"no longer: {name} in {cell}"


def test_the_docs_name_exactly_the_differences(
    stock: dict[str, list[Outputs]], ours: dict[str, list[Outputs]]
) -> None:
    """Each row of the docs' table is a difference that shows in some cell, and each such has a row."""
    found = {name for cells in CELLS.values() for cell in cells for name in cell.differences}
    for name in EVERYWHERE:
        others = [other for other in EVERYWHERE if other != name]
        if any(
            hiding([*others, *cell.differences], own)
            != hiding([*others, *cell.differences], theirs)
            for notebook in CELLS
            for cell, theirs, own in zip(
                CELLS[notebook], stock[notebook], ours[notebook], strict=True
            )
        ):
            found.add(name)
    table = DOCS.read_text().partition("## The outputs of cells")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([\w-]+)` \|", table, re.MULTILINE)
    assert sorted(rows) == sorted(found)
    assert found == DIFFERENCES.keys()


async def test_options_of_a_sandbox_without_warm_modules(
    broker: BrokerProcess, stock: dict[str, list[Outputs]]
) -> None:
    """Modules that a cell imports have the same options as those that were imported before."""
    own = await outputs_of(broker, "options")
    for cell, theirs, outputs in zip(CELLS["options"], stock["options"], own, strict=True):
        names = [*EVERYWHERE, *cell.differences]
        assert hiding(names, outputs) == hiding(names, theirs), str(cell)
