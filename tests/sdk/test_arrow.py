"""Tables out of what comes from a sandbox, which may be anything."""

from __future__ import annotations

import json
import sys

import pandas
import pyarrow
import pytest
from kernelbroker import ProtocolError, arrow


def stream(table: pyarrow.Table) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


GOOD = stream(pyarrow.table({"n": [1, 2, 3], "t": ["a", "bc", None]}))


@pytest.mark.parametrize("module", ["pyarrow", "pandas", "polars"])
def test_what_is_not_installed(monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"{module}: pip install"):
        arrow.expect("polars" if module == "polars" else "pandas")


def test_forms() -> None:
    """The same data in each form."""
    assert arrow._made(pyarrow.py_buffer(GOOD), "arrow").to_pydict() == {
        "n": [1, 2, 3],
        "t": ["a", "bc", None],
    }
    assert arrow._made(pyarrow.py_buffer(GOOD), "polars").rows() == [(1, "a"), (2, "bc"), (3, None)]
    assert arrow._made(pyarrow.py_buffer(GOOD), "pandas")["n"].tolist() == [1, 2, 3]


@pytest.mark.parametrize("data", [b"", b"no table", GOOD[: len(GOOD) // 2], b"\xff" * 100])
def test_what_is_no_table(data: bytes) -> None:
    """Anything else is an error of the protocol's."""
    with pytest.raises(ProtocolError, match="no table"):
        arrow._made(pyarrow.py_buffer(data), "pandas")


def test_offsets_that_lead_outside() -> None:
    """Data whose offsets lie is refused before anything follows them."""
    good = pyarrow.array(["x" * 8])
    data = bytearray(stream(pyarrow.table({"t": good})))
    place = data.rindex((8).to_bytes(4, "little"))
    assert data[place - 4 : place] == bytes(4), "the first offset"
    data[place : place + 4] = (10**6).to_bytes(4, "little")
    with pytest.raises(ProtocolError, match="no table"):
        arrow._made(pyarrow.py_buffer(bytes(data)), "pandas")


@pytest.mark.parametrize(
    "beside",
    [
        "no JSON",
        "[]",
        json.dumps({"objects": {"7": "None"}}),
        json.dumps({"labels": {"values": ["a"], "name": None}}),
        json.dumps({"columns": "AAAA"}),
    ],
)
def test_metadata_that_lies(beside: str) -> None:
    """What stands beside the data is believed no further than its form."""
    table = pyarrow.table({"n": [1], "t": ["a"]}).replace_schema_metadata({"kernelbroker": beside})
    with pytest.raises(ProtocolError, match="no table"):
        arrow._made(pyarrow.py_buffer(stream(table)), "pandas")


def test_labels() -> None:
    """Labels that Arrow has no type for come as JSON."""
    beside = json.dumps({"labels": {"values": [1, "a"], "name": "mixed"}})
    table = pyarrow.table({"1": [1], "a": ["a"]}).replace_schema_metadata({"kernelbroker": beside})
    frame = arrow._made(pyarrow.py_buffer(stream(table)), "pandas")
    assert frame.columns.equals(pandas.Index([1, "a"], dtype=object, name="mixed"))
