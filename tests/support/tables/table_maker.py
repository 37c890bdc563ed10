"""Makes what the kernel sends of a table, in the kernels' interpreter. Serves `processes.Maker`."""

from __future__ import annotations

import pickle
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

from frame_source import evaluate

sys.path.insert(0, sys.argv[1])

import pyarrow
from kernelbroker_kernel import preview as kernel_preview
from kernelbroker_kernel import readers, text_export, to_arrow
from kernelbroker_kernel.changes import Changes
from kernelbroker_kernel.errors import Refused
from pyarrow import parquet


def arrow(value: Any, lossy: bool) -> bytes:
    table = to_arrow.arrow_table(value, Changes(are_allowed=lossy))
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def parquet_file(value: Any, lossy: bool) -> bytes:
    sink = pyarrow.BufferOutputStream()
    table = to_arrow.arrow_table(value)
    try:
        parquet.write_table(table, sink)
    except pyarrow.ArrowException as error:  # as `exports.Export` does
        raise Refused("conflict", str(error)) from error
    return bytes(sink.getvalue().to_pybytes())


def _sent(pieces: Iterator[str]) -> str:
    """The text as `exports` sends it."""
    return "".join(pieces).encode("utf-8", "backslashreplace").decode()


def preview(value: Any, lossy: bool) -> Any:
    return kernel_preview.render(readers.read(value, 100), "df", 4 * 1024**2)


FORMATS: dict[str, Any] = {
    "arrow": arrow,
    "parquet": parquet_file,
    "csv": lambda value, _: _sent(text_export.csv_pieces(value)),
    "json": lambda value, _: _sent(text_export.json_pieces(value)),
    "preview": preview,
}


def answer(expression: str, format: str, lossy: bool) -> dict[str, Any]:
    try:
        value = evaluate(expression)
    except Exception as error:
        return {"invalid": repr(error)}  # pandas has no such table
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            warnings.simplefilter("ignore", DeprecationWarning)  # as in a user's program
            made = FORMATS[format](value, lossy)
    except Refused as refused:
        return {"refused": refused.message}
    except BaseException:
        return {"failed": traceback.format_exc()}
    return {"made": made, "warned": [str(each.message) for each in caught]}


if __name__ == "__main__":
    while True:
        try:
            asked = pickle.load(sys.stdin.buffer)
        except EOFError:
            break
        pickle.dump(answer(*asked), sys.stdout.buffer)
        sys.stdout.buffer.flush()
