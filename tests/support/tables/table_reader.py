"""Reads tables in a client's interpreter. Serves `processes.Reader`.

With "fork" as argument, each table is read in a process of its own, forked from one that has only imported
what `session.table` imports: reading must not depend on what was done with pandas before.
"""

from __future__ import annotations

import os
import pickle
import sys
import traceback
import warnings
from typing import Any

import kernelbroker
from kernelbroker import from_arrow

from_arrow.expect("pandas")
LIMIT = 2**30


def read(data: bytes, format: str) -> tuple[Any, list[str]]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # as in a user's program
        buffer = _pyarrow.allocate_buffer(len(data))
        memoryview(buffer).cast("B")[:] = data
        table = from_arrow.read_table(buffer, format, LIMIT)
    lossy = kernelbroker.LossyTableWarning
    return table, [str(each.message) for each in caught if not isinstance(each.message, lossy)]


def compare(data: bytes, expression: str) -> dict[str, Any]:
    table, warned = read(data, "pandas")
    changes = table.attrs.get("kernelbroker_changes", [])
    from frame_comparison import differences
    from frame_source import evaluate

    expected = evaluate(expression)
    found = differences(table, expected)
    names = [name_of(expected, place) for place in range(expected.shape[1])]
    return {"differences": found, "changes": changes, "names": names, "warned": warned}


def name_of(frame: Any, place: int) -> str | None:
    """The label of a column as text, if it is a text or a number."""
    try:
        label = frame.columns[place]
    except OverflowError:  # beyond Python's calendar
        return None
    if not isinstance(label, str | int):
        return None
    try:
        return str(label).encode("utf-8", "backslashreplace").decode()[:100]
    except ValueError:  # more digits than Python writes
        return None


def preview(facts: dict[str, Any], expression: str) -> dict[str, Any]:
    import json

    import msgspec
    from kernelbroker import DataFrameInfo

    facts = json.loads(json.dumps(facts))  # msgspec's has no lone surrogates
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.simplefilter("ignore", DeprecationWarning)  # as in a user's program
        made = msgspec.convert(facts, DataFrameInfo).preview_to_pandas()
    from frame_comparison import previewed
    from frame_source import evaluate

    found = previewed(made, evaluate(expression))
    return {"differences": found, "warned": [str(each.message) for each in caught]}


def evaluated(data: bytes, expression: str) -> Any:
    """What an expression gives, in which `table` is the table."""
    table, _ = read(data, "pandas")
    return eval(expression, {"table": table})


import pyarrow as _pyarrow  # noqa: E402  `expect` imports it first

JOBS = {"compare": compare, "preview": preview, "evaluate": evaluated}


def answer(job: str, arguments: tuple[Any, ...]) -> bytes:
    try:
        return pickle.dumps({"made": JOBS[job](*arguments)})
    except BaseException:
        return pickle.dumps({"failed": traceback.format_exc()})


def answer_of_fork(job: str, arguments: tuple[Any, ...]) -> bytes:
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiving)
        with os.fdopen(sending, "wb") as pipe:
            pipe.write(answer(job, arguments))
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        made = pipe.read()
    os.waitpid(child, 0)
    return made or pickle.dumps({"failed": "the process died"})


if __name__ == "__main__":
    answered = answer_of_fork if "fork" in sys.argv else answer
    while True:
        try:
            asked = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        sys.stdout.buffer.write(answered(*asked))
        sys.stdout.buffer.flush()
