"""Tables are read from data of a sandbox, which may send anything."""

from __future__ import annotations

import datetime as dt
import json
import sys

import pandas
import pyarrow
import pytest
from kernelbroker import LossyTableWarning, ProtocolError, arrow_to_pandas, from_arrow

LIMIT = 2**28
COMPLEX = pyarrow.struct([("real", pyarrow.float32()), ("imag", pyarrow.float32())])


def stream(table: pyarrow.Table) -> bytes:
    sink = pyarrow.BufferOutputStream()
    with pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


GOOD = stream(pyarrow.table({"n": [1, 2, 3], "t": ["a", "bc", None]}))


@pytest.mark.parametrize("module", ["pyarrow", "pandas", "polars"])
def test_the_error_says_which_package_to_install(
    monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    """A missing package is named with the command that installs it."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ImportError, match=f"{module}: pip install"):
        from_arrow.expect("polars" if module == "polars" else "pandas")


def test_each_format_has_the_same_data() -> None:
    """pyarrow, polars and pandas get the same values."""
    assert from_arrow.read_table(pyarrow.py_buffer(GOOD), "arrow", LIMIT).to_pydict() == {
        "n": [1, 2, 3],
        "t": ["a", "bc", None],
    }
    assert from_arrow.read_table(pyarrow.py_buffer(GOOD), "polars", LIMIT).rows() == [
        (1, "a"),
        (2, "bc"),
        (3, None),
    ]
    assert from_arrow.read_table(pyarrow.py_buffer(GOOD), "pandas", LIMIT)["n"].tolist() == [
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("data", [b"", b"no table", GOOD[: len(GOOD) // 2], b"\xff" * 100])
def test_invalid_data_is_a_protocol_error(data: bytes) -> None:
    """Data that is no Arrow stream is a ProtocolError."""
    with pytest.raises(ProtocolError, match="no table"):
        from_arrow.read_table(pyarrow.py_buffer(data), "pandas", LIMIT)


def test_offsets_outside_of_the_data_are_refused() -> None:
    """Invalid offsets are refused before they are followed."""
    good = pyarrow.array(["x" * 8])
    data = bytearray(stream(pyarrow.table({"t": good})))
    place = data.rindex((8).to_bytes(4, "little"))
    assert data[place - 4 : place] == bytes(4), "the first offset"
    data[place : place + 4] = (10**6).to_bytes(4, "little")
    with pytest.raises(ProtocolError, match="no table"):
        from_arrow.read_table(pyarrow.py_buffer(bytes(data)), "pandas", LIMIT)


@pytest.mark.parametrize("kind", ["texts", "categories", "nested", "numbers", "alone"])
def test_writing_to_a_column_changes_no_other(kind: str) -> None:
    """Columns that share memory are copied; a column with memory of its own is not."""
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
    frame = arrow_to_pandas.to_frame(pyarrow.table({"n": numbers, "o": other}), buffer, LIMIT)
    before = frame["o"].tolist()
    frame.iloc[3, 0] = 2**40
    assert frame["n"].tolist() == [0, 1, 2, 2**40, 4, 5, 6, 7]
    assert frame["o"].tolist() == before
    assert (place[3] == 2**40) == (kind == "alone")


@pytest.mark.parametrize(
    "metadata",
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
        json.dumps({"complex": [0]}),
        json.dumps({"sparse": {"7": 0}}),
        json.dumps({"sparse": {"0": {"unknown": 1}}}),
        json.dumps({"objects": {"1": "json"}}),
        json.dumps({"changes": [1]}),
        json.dumps({"changes": [{"part": "column"}]}),
        json.dumps({"arrow": {"a": 1}}),
        json.dumps({"rows": {"range": [0, "x", 1], "names": [None]}}),
        "[" * 100_000,
    ],
)
def test_invalid_metadata_is_a_protocol_error(metadata: str) -> None:
    """Metadata that does not fit the data is a ProtocolError."""
    table = pyarrow.table({"n": [1], "t": ["a"]}).replace_schema_metadata(
        {"kernelbroker": metadata}
    )
    with pytest.raises(ProtocolError, match="no table"):
        from_arrow.read_table(pyarrow.py_buffer(stream(table)), "pandas", LIMIT)


def test_labels_of_several_types() -> None:
    """Labels that Arrow has no type for are read from JSON."""
    metadata = json.dumps({"columns": {"values": [1, "a"], "names": ["mixed"]}})
    table = pyarrow.table({"1": [1], "a": ["a"]}).replace_schema_metadata(
        {"kernelbroker": metadata}
    )
    frame = from_arrow.read_table(pyarrow.py_buffer(stream(table)), "pandas", LIMIT)
    assert frame.columns.equals(pandas.Index([1, "a"], dtype=object, name="mixed"))


def with_metadata(table: pyarrow.Table, metadata: dict[str, object]) -> pyarrow.Buffer:
    return pyarrow.py_buffer(
        stream(table.replace_schema_metadata({"kernelbroker": json.dumps(metadata)}))
    )


def test_changes_are_in_attrs_and_in_a_warning() -> None:
    """The changes of a lossy table are in `attrs`, and a warning names them."""
    changes = [
        {"part": "column", "column": "a", "change": "functions became text"},
        {"part": "row labels", "column": None, "change": "became text"},
    ]
    data = with_metadata(pyarrow.table({"a": ["f"]}), {"changes": changes})
    for format in ("pandas", "arrow", "polars"):
        with pytest.warns(LossyTableWarning, match="column a: functions became text") as caught:
            table = from_arrow.read_table(data, format, LIMIT)
        assert [each.message.changes for each in caught] == [changes]
        if format == "pandas":
            assert table.attrs == {"kernelbroker_changes": changes}


def test_sparse_and_complex_columns() -> None:
    """Sparse columns and complex numbers are rebuilt with their dtypes."""
    table = pyarrow.table(
        {
            "s": pyarrow.array([0, 0, 3], "int16"),
            "f": pyarrow.array([1.5, None, None], "float64"),
            "c": pyarrow.array([{"real": 1, "imag": -0.0}] * 3, COMPLEX),
        }
    )
    metadata = {"sparse": {"0": 0, "1": {"float": "nan"}}, "complex": [2]}
    frame = from_arrow.read_table(with_metadata(table, metadata), "pandas", LIMIT)
    assert [*map(str, frame.dtypes)] == ["Sparse[int16, 0]", "Sparse[float64, nan]", "complex64"]
    assert frame["s"].tolist() == [0, 0, 3]
    assert [*map(str, frame["f"])] == ["1.5", "nan", "nan"]
    assert repr(frame["c"].tolist()) == "[(1-0j), (1-0j), (1-0j)]"
    assert frame["s"].sparse.npoints == 1


def test_the_flag_against_duplicate_labels() -> None:
    """`allows_duplicate_labels` is False if it was in the kernel."""
    data = with_metadata(pyarrow.table({"a": [1]}), {"unique": True})
    frame = from_arrow.read_table(data, "pandas", LIMIT)
    assert not frame.flags.allows_duplicate_labels


def test_missing_integers_of_other_libraries() -> None:
    """Integers and bools with missing values have pandas' nullable dtypes; others keep NumPy's."""
    table = pyarrow.table(
        {
            "a": pyarrow.array([2**60 + 1, None]),
            "b": pyarrow.array([None, 255], pyarrow.uint8()),
            "c": [True, None],
            "d": [1, 2],
        }
    )
    frame = from_arrow.read_table(pyarrow.py_buffer(stream(table)), "pandas", LIMIT)
    assert list(map(str, frame.dtypes)) == ["Int64", "UInt8", "boolean", "int64"]
    assert frame["a"][0] == 2**60 + 1 and frame["a"][1] is pandas.NA
    frame.loc[0, "b"] = 7
    assert frame["b"].tolist() == [7, 255]


@pytest.mark.parametrize(
    ("values", "type_"),
    [
        ([1, None], pyarrow.time64("ns")),
        ([2**22, None], pyarrow.date32()),
        ([[1], None], pyarrow.list_(pyarrow.time64("ns"))),
        ([{"d": 2**22}], pyarrow.struct([("d", pyarrow.date32())])),
    ],
    ids=lambda value: str(value) if isinstance(value, pyarrow.DataType) else "",
)
def test_times_that_python_does_not_have(values: list[object], type_: pyarrow.DataType) -> None:
    """Nanoseconds and far dates, of polars for one, stay in Arrow's types; others are Python's."""
    table = pyarrow.table({"t": pyarrow.array(values, type_)})
    frame = from_arrow.read_table(pyarrow.py_buffer(stream(table)), "pandas", LIMIT)
    assert frame["t"].dtype == pandas.ArrowDtype(type_)
    assert pyarrow.chunked_array(frame["t"].array.__arrow_array__()).equals(table["t"])
    plain = pyarrow.table({"t": pyarrow.array([1000], pyarrow.time64("ns"))})
    frame = from_arrow.read_table(pyarrow.py_buffer(stream(plain)), "pandas", LIMIT)
    assert frame["t"].tolist() == [dt.time(0, 0, 0, 1)]
