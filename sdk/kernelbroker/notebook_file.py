"""Notebook files (nbformat 4): reading, running their cells in a session, writing.

It does what nbclient does: cells run one after the other; empty ones and those with the tag
`skip-execution` are skipped; a failed cell ends the run, unless errors are allowed or the cell has the tag
`raises-exception`.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from .protocol.errors import ConfirmationRequired
from .protocol.events import CHART_MIME
from .protocol.findings import Language
from .results import ExecutionResult
from .session import Session

_LANGUAGES: dict[str, Language] = {
    "python": "python",
    "javascript": "javascript",
    "bash": "shell",
    "sh": "shell",
    "shell": "shell",
}
_SKIP, _RAISES = "skip-execution", "raises-exception"
_TEXT_TYPES = ("application/javascript", "image/svg+xml")
"""Besides text/*: stored as lists of lines."""


class InvalidNotebook(ValueError):
    """The file is no notebook that can be run; the message says why."""


def read(path: Path) -> dict[str, Any]:
    """Return the notebook of a file. Raises InvalidNotebook, OSError."""
    try:
        notebook = json.loads(path.read_text("utf-8"))
    except (ValueError, UnicodeError) as exc:
        raise InvalidNotebook(f"{path} is not JSON: {exc}") from exc
    if not isinstance(notebook, dict) or not isinstance(notebook.get("nbformat"), int):
        raise InvalidNotebook(f"{path} is not a notebook")
    if notebook["nbformat"] != 4:
        raise InvalidNotebook(
            f"{path} has nbformat {notebook['nbformat']}; convert it with "
            f"`jupyter nbconvert --to notebook --nbformat 4 {path}`"
        )
    cells = notebook.get("cells")
    if not isinstance(cells, list) or not all(isinstance(cell, dict) for cell in cells):
        raise InvalidNotebook(f"{path} has no list of cells")
    return notebook


def write(notebook: dict[str, Any], path: Path) -> None:
    """Write a notebook as nbformat does, in place of the file at once. Raises OSError."""
    text = json.dumps(_on_disk(notebook), indent=1, sort_keys=True, ensure_ascii=False)
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        Path(name).chmod(mode)
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise


def language_of(notebook: dict[str, Any]) -> Language:
    """Return the language of a notebook's cells, by its metadata. Raises InvalidNotebook."""
    metadata = _table(notebook.get("metadata"))
    named = (
        _table(metadata.get("language_info")).get("name")
        or _table(metadata.get("kernelspec")).get("language")
        or "python"
    )
    language = _LANGUAGES.get(str(named).lower())
    if language is None:
        known = ", ".join(sorted(_LANGUAGES))
        raise InvalidNotebook(f"the notebook's language is {named!r}; this broker runs {known}")
    return language


async def run(
    notebook: dict[str, Any],
    session: Session,
    *,
    timeout: float | None = None,
    env: Mapping[str, str] | None = None,
    confirm: bool = False,
    allow_errors: bool = False,
    on_cell: Callable[[int, int, ExecutionResult | None], None] = lambda *_: None,
) -> ExecutionResult | None:
    """Run the cells of a notebook in a session, and put their outputs into it.

    Args:
        timeout: seconds for each cell.
        env: environment variables of each cell.
        confirm: run the cells also for which a policy wants a confirmation.
        on_cell: called before each cell with its number and how many there are, and again with its result.

    Returns:
        The result of the cell that ended the run by its failure; None if all ran.

    Raises:
        InvalidNotebook, and as `Session.run`. What ran before is in the notebook.
    """
    language = language_of(notebook)
    cells = [cell for cell in notebook["cells"] if _is_code(cell)]
    for number, cell in enumerate(cells, 1):
        tags = _table(cell.get("metadata")).get("tags") or []
        if _SKIP in tags:
            continue
        on_cell(number, len(cells), None)
        cell["outputs"], cell["execution_count"] = [], None
        run_cell = partial(
            session.run,
            source_of(cell),
            language=language,
            timeout=timeout,
            env=env,
            on_error="keep",
            on_disconnect="interrupt",
        )
        try:
            result = await run_cell()
        except ConfirmationRequired as exc:
            if not confirm:
                raise
            result = await run_cell(confirm=exc.confirmation)
        cell["outputs"] = [_of_jupyter(output) for output in result.outputs]
        cell["execution_count"] = result.execution_count
        on_cell(number, len(cells), result)
        if not result.success and not allow_errors and _RAISES not in tags:
            return result
    return None


def source_of(cell: dict[str, Any]) -> str:
    source = cell.get("source", "")
    return "".join(map(str, source)) if isinstance(source, list) else str(source)


def _is_code(cell: dict[str, Any]) -> bool:
    return cell.get("cell_type") == "code" and bool(source_of(cell).strip())


def _table(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _of_jupyter(output: dict[str, Any]) -> dict[str, Any]:
    """An output without the form that is not Jupyter's: the data of a chart."""
    data = output.get("data")
    if not isinstance(data, dict) or CHART_MIME not in data:
        return output
    return {**output, "data": {mime: data[mime] for mime in data if mime != CHART_MIME}}


def _on_disk(notebook: dict[str, Any]) -> dict[str, Any]:
    """The notebook with its texts as lists of lines, which differ well."""
    cells = []
    for cell in notebook["cells"]:
        changed = {**cell, "source": source_of(cell).splitlines(keepends=True)}
        if isinstance(cell.get("outputs"), list):
            changed["outputs"] = [_split(output) for output in cell["outputs"]]
        cells.append(changed)
    return {**notebook, "cells": cells}


def _split(output: Any) -> Any:
    if not isinstance(output, dict):
        return output
    if isinstance(text := output.get("text"), str):
        return {**output, "text": text.splitlines(keepends=True)}
    if isinstance(data := output.get("data"), dict):
        split = {
            mime: value.splitlines(keepends=True)
            if isinstance(value, str) and (mime.startswith("text/") or mime in _TEXT_TYPES)
            else value
            for mime, value in data.items()
        }
        return {**output, "data": split}
    return output


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
