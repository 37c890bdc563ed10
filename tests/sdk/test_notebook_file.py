"""Notebook files: run cell by cell in a session, and written as nbformat writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kernelbroker
import nbformat
import pytest
from kernelbroker import notebook_file
from kernelbroker.protocol.messages import Execute

from tests.sdk.test_cli import command
from tests.support.gateway import CellFailed


def new(*cells: Any, **metadata: Any) -> Any:
    """A notebook of code cells, given as sources or as cells."""
    made = [nbformat.v4.new_code_cell(c) if isinstance(c, str) else c for c in cells]
    return nbformat.v4.new_notebook(cells=made, metadata=metadata)


def tagged(source: str, *tags: str) -> Any:
    return nbformat.v4.new_code_cell(source, metadata={"tags": list(tags)})


@pytest.fixture
def cells(connected):
    async def talk(cell):
        cell.stdout("one\ntwo\n")
        cell.display({"text/html": "<b>\n</b>", "image/png": "AAAA"})

    async def fail(cell):
        raise CellFailed("ValueError", "no")

    connected.cells.update(talk=talk, fail=fail)
    return connected


def save(path: Path, notebook: Any) -> Path:
    nbformat.write(notebook, path)
    return path


async def test_a_notebook_is_run_and_written_back(cells, tmp_path):
    """Outputs and counts replace the old ones; markdown and empty cells stay as they are."""
    old = nbformat.v4.new_output("stream", text="old\n")
    notebook = new(
        nbformat.v4.new_markdown_cell("# Title\n\ntext"),
        nbformat.v4.new_code_cell("talk", outputs=[old], execution_count=17),
        "  \n",
        nbformat.v4.new_raw_cell("raw"),
        tagged("fail", "skip-execution"),
        "x = 'ä'\ny = 2",
    )
    path = save(tmp_path / "a.ipynb", notebook)
    path.chmod(0o640)
    status, out, err = await command("exec", str(path), "--timeout", "7")
    assert (status, out) == (0, "")
    assert "cell 1 of 3" in err
    assert f"written: {path}" in err
    written = nbformat.read(path, as_version=4)
    nbformat.validate(written)
    assert [op.code for op in cells.ops(Execute)] == ["talk", "x = 'ä'\ny = 2"]
    assert {op.on_error for op in cells.ops(Execute)} == {"keep"}
    assert {op.timeout for op in cells.ops(Execute)} == {7.0}
    assert [o["output_type"] for o in written.cells[1].outputs] == ["stream", "display_data"]
    assert written.cells[1].execution_count != 17
    assert [c.source for c in written.cells] == [c.source for c in notebook.cells]
    assert written.cells[2].get("outputs") == []
    assert path.read_text() == nbformat.writes(written) + "\n"  # the same bytes
    assert path.stat().st_mode & 0o777 == 0o640


async def test_a_failed_cell_ends_the_run(cells, tmp_path):
    """The cells behind a failed one do not run. What ran is written, and the status is 1."""
    path = save(tmp_path / "a.ipynb", new("talk", "fail", "talk"))
    target = tmp_path / "b.ipynb"
    status, _, err = await command("exec", str(path), "--output", str(target))
    assert status == 1
    assert "cell 2 failed: ValueError: no" in err
    assert not any(cell.outputs for cell in nbformat.read(path, as_version=4).cells)
    first, second, third = nbformat.read(target, as_version=4).cells
    assert first.outputs
    assert [(o.output_type, o.ename) for o in second.outputs] == [("error", "ValueError")]
    assert third.outputs == []


@pytest.mark.parametrize("how", ["option", "tag"])
async def test_errors_can_be_allowed(cells, tmp_path, how):
    """With --allow-errors, or with the tag raises-exception, the run goes on behind a failed cell."""
    failing = "fail" if how == "option" else tagged("fail", "raises-exception")
    path = save(tmp_path / "a.ipynb", new(failing, "talk"))
    status, _, _ = await command("exec", str(path), *(["--allow-errors"] * (how == "option")))
    assert status == 0
    first, second = nbformat.read(path, as_version=4).cells
    assert first.outputs[0].output_type == "error"
    assert second.outputs


async def test_the_language_is_that_of_the_metadata(cells, tmp_path):
    """A notebook of another language runs in it."""
    path = save(tmp_path / "a.ipynb", new("1", language_info={"name": "bash"}))
    assert (await command("exec", str(path)))[0] == 0
    assert [op.language for op in cells.ops(Execute)] == ["shell"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a notebook"),
        ('{"nbformat": 3, "worksheets": []}', "nbconvert --to notebook"),
        ('{"nbformat": 4}', "no list of cells"),
        (
            '{"nbformat": 4, "cells": [], "metadata": {"kernelspec": {"language": "R"}}}',
            "language is 'R'; this broker runs",
        ),
    ],
)
async def test_what_is_no_notebook_is_refused(cells, tmp_path, content, message):
    """A file that cannot be run is refused with status 2, and stays as it is."""
    path = tmp_path / "a.ipynb"
    path.write_text(content)
    status, _, err = await command("exec", str(path))
    assert status == 2
    assert message in err
    assert path.read_text() == content


async def test_a_session_as_a_notebook(cells, tmp_path):
    """The notebook of a session has the outputs of its results, on stdout or in a file."""
    path = tmp_path / "s.ipynb"
    async with kernelbroker.connect() as broker:
        async with broker.session("s", keep=True) as session:
            result = await session.run("talk")
            notebook = await session.notebook()
        assert await broker.notebook("s") == notebook
        with pytest.raises(kernelbroker.NotFound, match="no session nobody"):
            await broker.notebook("nobody")
    assert [cell["outputs"] for cell in notebook["cells"]] == [result.outputs]
    status, out, _ = await command("notebook", "s")
    assert (status, json.loads(out)) == (0, notebook)
    assert (await command("notebook", "s", "-o", str(path)))[0] == 0
    nbformat.validate(nbformat.read(path, as_version=4))
    assert (await command("exec", str(path)))[0] == 0  # it can be run again
    await cells.end("s")


def test_a_file_that_cannot_be_written_leaves_nothing(tmp_path):
    """If writing fails, the file is the old one, and no temporary file is left."""
    path = save(tmp_path / "a.ipynb", new("1"))
    before = path.read_text()
    with pytest.raises(TypeError):
        notebook_file.write({"cells": [], "metadata": object()}, path)
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]
