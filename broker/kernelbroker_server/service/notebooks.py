"""A session as a notebook (nbformat 4.5), made of its stored executions.

Each execution is a code cell, in the order of its acceptance, with the outputs that it has had so far. The
notebook is as untrusted as what the session has shown: front ends do not run scripts of a notebook that
their user has not run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from kernelbroker.protocol.codec import encode
from kernelbroker.protocol.events import Event, Started
from kernelbroker.protocol.outputs import Output, Outputs

from ..sessions.registry import Registry
from ..sessions.store import EventStore, ExecutionLog

MAX_BYTES = 64 * 1024**2
_CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_MAGICS = {"shell": "%%bash\n", "javascript": "%%script node\n"}
"""For cells in other languages than the notebook's."""


class Cell(msgspec.Struct, kw_only=True):
    """A code cell. `metadata.kernelbroker` has the execution's id, time, state and language."""

    cell_type: Literal["code"] = "code"
    id: str
    metadata: dict[str, Any]
    source: str
    execution_count: int | None
    outputs: list[dict[str, Any]]


class Notebook(msgspec.Struct, kw_only=True):
    """A notebook of nbformat 4.5."""

    nbformat: int = 4
    nbformat_minor: int = 5
    metadata: dict[str, Any]
    cells: list[Cell]


@dataclass(frozen=True, slots=True)
class _Execution:
    """An execution and its events at one moment."""

    log: ExecutionLog
    events: Sequence[Event]


class Notebooks:
    """The notebooks of one tenant's sessions."""

    def __init__(self, registry: Registry, store: EventStore) -> None:
        self._registry = registry
        self._store = store

    async def json_of(self, session_id: str) -> bytes:
        """Return the notebook of a session that is open, or of the latest one with this id that has ended.

        Raises:
            NotFound, SessionGone: no executions of such a session are stored.
            TooLarge, Unavailable
        """
        tenant = self._registry.tenant.name
        logs = await self._store.session_logs(tenant, session_id, MAX_BYTES)
        if logs is None:
            await self._registry.resolve(session_id)
        executions = [
            _Execution(log, [stored.event for stored in log.read()]) for log in logs or ()
        ]
        return await asyncio.to_thread(lambda: encode(notebook(session_id, executions)))


def notebook(session_id: str, executions: Sequence[_Execution]) -> Notebook:
    ids: set[str] = set()
    return Notebook(
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "kernelbroker": {"session_id": session_id},
        },
        cells=[_cell(number, each, ids) for number, each in enumerate(executions)],
    )


def _cell(number: int, execution: _Execution, ids: set[str]) -> Cell:
    """Args: ids: those of the cells before; the cell's own is added."""
    log, outputs, count = execution.log, Outputs(), None
    for event in execution.events:
        outputs.add(event)
        if isinstance(event, Started):
            count = event.execution_count
    cell_id = log.id
    if not _CELL_ID.fullmatch(cell_id) or cell_id in ids:
        cell_id = f"cell-{number}"
    ids.add(cell_id)
    language = log.request.language or "python"
    if log.packages:
        source = f"%pip install {' '.join(log.packages)}"
    else:
        source = _MAGICS.get(language, "") + log.request.code
    end = outputs.end
    return Cell(
        id=cell_id,
        metadata={
            "kernelbroker": {
                "execution_id": log.id,
                "accepted_at": round(log.accepted_at, 3),
                "state": log.state,
                "language": language,
            }
        },
        source=source,
        execution_count=count
        if end is None or end.execution_count is None
        else end.execution_count,
        outputs=[_valid(output) for output in outputs.as_notebook()],
    )


def _valid(output: Output) -> Output:
    """The output without what nbformat forbids: a kernel can send anything under any type."""
    data = output.get("data")
    if not isinstance(data, Mapping):
        return output
    return {**output, "data": {mime: value for mime, value in data.items() if _fits(mime, value)}}


def _fits(mime: str, value: object) -> bool:
    if mime == "application/json" or mime.endswith("+json"):
        return True
    return isinstance(value, str) or (
        isinstance(value, list) and all(isinstance(line, str) for line in value)
    )
