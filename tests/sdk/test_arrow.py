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


@pytest.mark.parametrize("kind", ["texts", "categories", "nested", "numbers", "alone"])
def test_columns_in_one_place(kind: str) -> None:
    """What is written to a column is never the offsets of another; one that lies alone is not copied."""
    buffer = pyarrow.allocate_buffer(72)
    place = memoryview(buffer).cast("B").cast("q")
    for number in range(9):
        place[number] = number
    numbers = pyarrow.Array.from_buffers(pyarrow.int64(), 8, [None, buffer.slice(0, 64)])
    letters = [None, buffer, pyarrow.py_buffer(b"abcdefgh")]
    texts = pyarrow.Array.from_buffers(pyarrow.large_string(), 8, letters)
    other = {
        "texts": texts,
        "categories": pyarrow.DictionaryArray.from_arrays(pyarrow.array(range(8)), texts),
        "nested": pyarrow.StructArray.from_arrays([texts], ["t"]),
        "numbers": numbers,
        "alone": pyarrow.array(list("abcdefgh")),
    }[kind]
    frame = arrow.frame(pyarrow.table({"n": numbers, "o": other}), buffer)
    before = frame["o"].tolist()
    frame.iloc[3, 0] = 2**40
    assert frame["n"].tolist() == [0, 1, 2, 2**40, 4, 5, 6, 7]
    assert frame["o"].tolist() == before
    assert (place[3] == 2**40) == (kind == "alone")


@pytest.mark.parametrize(
    "beside",
    [
        "no JSON",
        "[]",
        json.dumps({"objects": {"7": "None"}}),
        json.dumps({"columns": {"values": ["a"], "names": [None]}}),
        json.dumps({"columns": {"values": ["a", "b"], "names": []}}),
        json.dumps({"columns": {"values": ["a", "b"]}}),
        json.dumps({"columns": {"table": "AAAA", "names": [None], "multi": False}}),
        json.dumps({"columns": {"range": [0, 2, 0], "names": [None]}}),
        json.dumps({"levels": {"names": [None] * 3, "multi": True}}),
        json.dumps({"levels": {"names": [], "multi": False}}),
        json.dumps({"levels": {"names": [{}], "multi": False}}),
        json.dumps({"categories": {"0": {"values": ["a"], "names": [None]}}}),
        json.dumps({"arrow": [7]}),
        json.dumps({"arrow": {"a": 1}}),
        json.dumps({"rows": {"range": [0, "x", 1], "names": [None]}}),
        "[" * 100_000,
    ],
)
def test_metadata_that_lies(beside: str) -> None:
    """What stands beside the data is believed no further than its form."""
    table = pyarrow.table({"n": [1], "t": ["a"]}).replace_schema_metadata({"kernelbroker": beside})
    with pytest.raises(ProtocolError, match="no table"):
        arrow._made(pyarrow.py_buffer(stream(table)), "pandas")


def test_labels() -> None:
    """Labels that Arrow has no type for come as JSON."""
    beside = json.dumps({"columns": {"values": [1, "a"], "names": ["mixed"]}})
    table = pyarrow.table({"1": [1], "a": ["a"]}).replace_schema_metadata({"kernelbroker": beside})
    frame = arrow._made(pyarrow.py_buffer(stream(table)), "pandas")
    assert frame.columns.equals(pandas.Index([1, "a"], dtype=object, name="mixed"))
