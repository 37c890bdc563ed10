"""Tables of three libraries become the protocol's DataFrame, within bounds."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from kernelbroker.protocol import events
from kernelbroker_kernel.report import report
from kernelbroker_kernel.values import json_size


def dataframe(value: Any, **asked: Any) -> dict[str, Any]:
    """The report on a table, validated with the protocol's type."""
    payload = report({"x": value}, {"result_var": "x", **asked})
    json.dumps(payload, allow_nan=False)
    found: dict[str, Any] = payload["dataframe"]
    known = msgspec.convert(found, events.DataFrame)
    assert list(known.dtypes) == known.columns
    assert len(set(known.columns)) == len(known.columns)
    assert set(found) == set(events.DataFrame.__struct_fields__)
    return found


def test_pandas_facts_and_preview() -> None:
    """The report of a pandas DataFrame has all fields."""
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, np.nan, np.inf], "c": ["x", None, "z|\n"]})
    assert dataframe(frame, preview_rows=3) == {
        "var_name": "x",
        "kind": "pandas",
        "shape": [3, 3],
        "columns": ["a", "b", "c"],
        "labels": None,
        "dtypes": {"a": "int64", "b": "float64", "c": "str"},
        "index": {"names": [None], "dtypes": ["int64"], "values": [0, 1, 2]},
        "preview": [
            {"a": 1, "b": 0.5, "c": "x"},
            {"a": 2, "b": None, "c": None},
            {"a": 3, "b": "Infinity", "c": "z|\n"},
        ],
        "markdown": "| a | b | c |\n"
        "| --- | --- | --- |\n"
        "| 1 | 0.5 | x |\n"
        "| 2 | null | null |\n"
        "| 3 | Infinity | z\\|\\n |",
        "memory_usage": frame.memory_usage().sum(),
    }


POLARS = pl.DataFrame(
    {"a": [1, None], "t": [datetime(2024, 1, 1, tzinfo=UTC)] * 2, "l": [[1, 2], []]}
)


def test_polars_facts_and_preview() -> None:
    """A polars table has no index."""
    found = dataframe(POLARS)
    assert (found["kind"], found["shape"], found["index"]) == ("polars", [2, 3], None)
    assert found["dtypes"]["a"] == "Int64"
    assert found["preview"][0] == {"a": 1, "t": "2024-01-01T00:00:00+00:00", "l": [1, 2]}
    assert found["memory_usage"] == POLARS.estimated_size()


@pytest.mark.parametrize("kind", [pa.table, pa.record_batch])
def test_pyarrow_facts_and_preview(kind: Any) -> None:
    """pyarrow tables and batches are reported like the others, with nested values."""
    found = dataframe(kind({"a": [1, None], "d": [Decimal("1.5")] * 2, "s": [{"k": b"x"}] * 2}))
    assert (found["kind"], found["shape"], found["index"]) == ("pyarrow", [2, 3], None)
    assert found["preview"][1] == {"a": None, "d": "1.5", "s": {"k": "eA=="}}
    assert found["memory_usage"] > 0


def test_pyarrow_repeated_and_odd_values() -> None:
    """Repeated names are kept, and a timestamp beyond Python's calendar affects no other value."""
    moments = pa.array([0, 2**62], pa.int64()).cast(pa.timestamp("s"))
    found = dataframe(pa.Table.from_arrays([moments, moments], names=["t", "t"]))
    assert found["columns"] == ["t", "t.1"]
    assert found["labels"] == ["t", "t"]
    assert found["preview"][0]["t"] == "1970-01-01T00:00:00"
    assert isinstance(found["preview"][1]["t"], str)


class Odd:
    def __str__(self) -> str:
        raise SystemExit

    __repr__ = __str__


LABELS: list[tuple[Any, list[str] | None, Any]] = [
    (["a", "a"], ["a", "a.1"], ["a", "a"]),
    ([0, 1], ["0", "1"], [0, 1]),
    (pd.Index([None, np.nan], dtype=object), ["None", "nan"], [None, None]),
    (pd.MultiIndex.from_tuples([("a", 1), ("b", "")]), ["a / 1", "b"], [["a", 1], ["b", ""]]),
    (pd.to_datetime(["2024-01-01", "2024-01-02"]), None, ["2024-01-01T00:00:00"] * 1),
    (pd.Index([Odd(), "b"], dtype=object), None, ["<Odd whose repr raised SystemExit>", "b"]),
    (["x" * 1_000, "y"], ["x" * 199 + "…", "y"], ["x" * 1_000, "y"]),
]


@pytest.mark.parametrize(("labels", "keys", "expected"), LABELS)
def test_column_labels(labels: Any, keys: list[str] | None, expected: list[Any]) -> None:
    """Column keys are unique texts; the real labels are reported if they differ."""
    found = dataframe(pd.DataFrame([[1, 2]], columns=labels))
    if keys is not None:
        assert found["columns"] == keys
    assert found["labels"][: len(expected)] == expected
    assert list(found["preview"][0].values()) == [1, 2]


def test_multiindex_rows() -> None:
    """Row labels of several levels are lists, with a name and a dtype for each level."""
    index = pd.MultiIndex.from_product([["a", "b"], [1, 2]], names=["k", None])
    found = dataframe(pd.DataFrame({"v": range(4)}, index=index), preview_rows=2)
    assert found["index"] == {
        "names": ["k", None],
        "dtypes": ["str", "int64"],
        "values": [["a", 1], ["a", 2]],
    }
    assert found["markdown"].splitlines()[0] == "| k |  | v |"
    assert found["markdown"].splitlines()[-1] == "| a | 2 | 1 |"


@pytest.mark.parametrize(
    ("index", "dtype", "first"),
    [
        (
            pd.date_range("2024", periods=2, tz="UTC"),
            "datetime64[us, UTC]",
            "2024-01-01T00:00:00+00:00",
        ),
        (pd.period_range("2024-01", periods=2, freq="M"), "period[M]", "2024-01"),
        (pd.interval_range(0, 2), "interval[int64, right]", "(0, 1]"),
        (pd.to_timedelta([1, 2], unit="s"), "timedelta64[us]", "P0DT0H0M1S"),
        (pd.CategoricalIndex(["a", "b"]), "category", "a"),
        (pd.Index([1.5, np.nan]), "float64", 1.5),
        (pd.RangeIndex(5, 7), "int64", 5),
    ],
)
def test_row_labels(index: Any, dtype: str, first: Any) -> None:
    """Any kind of index is reported, and is in the markdown."""
    found = dataframe(pd.DataFrame({"v": [1, 2]}, index=index))
    assert found["index"]["dtypes"] == [dtype]
    assert found["index"]["values"][0] == first
    assert found["markdown"].startswith("|  | v |")


@pytest.mark.parametrize(
    ("column", "first"),
    [
        (pd.arrays.SparseArray([0, 0, 1]), 0),
        (pd.array([1, None, 3], dtype="Int64"), 1),
        (pd.array([None, True, False], dtype="boolean"), None),
        (pd.Categorical(["a", "b", None]), "a"),
        (pd.Categorical([Decimal(1), None, None]), "1"),
        (pd.arrays.IntervalArray.from_breaks([0, 1, 2, 3]), "(0, 1]"),
        (pd.array(["a", None, "c"], dtype=pd.ArrowDtype(pa.string())), "a"),
        ([{"k": {1, 2}}, [1], (2,)], {"k": [1, 2]}),
        ([Odd(), None, 1], "<Odd whose repr raised SystemExit>"),
        ([pd.NaT, None, pd.Timestamp(0)], None),
        ([1 + 1j, 2j, 3], "(1+1j)"),
    ],
    ids=lambda case: type(case).__name__,
)
def test_wide_tables(column: Any, first: Any) -> None:
    """Columns of any dtype are previewed."""
    found = dataframe(pd.DataFrame({"v": column}))
    assert found["preview"][0]["v"] == first


@pytest.mark.parametrize(
    ("value", "shape"),
    [
        (pd.DataFrame(), [0, 0]),
        (pd.DataFrame({"a": []}), [0, 1]),
        (pd.DataFrame(index=range(3)), [3, 0]),
        (pl.DataFrame(), [0, 0]),
        (pl.DataFrame({"a": []}), [0, 1]),
        (pa.table({}), [0, 0]),
    ],
)
def test_empty_tables(value: Any, shape: list[int]) -> None:
    """A table without rows or columns is a table."""
    found = dataframe(value)
    assert found["shape"] == shape
    assert len(found["preview"]) == shape[0]


def test_subclass_is_a_table() -> None:
    """A class derived from DataFrame is reported as a DataFrame."""

    class Derived(pd.DataFrame):
        @property
        def _constructor(self) -> Any:
            return Derived

    assert dataframe(Derived({"a": [1]}))["preview"] == [{"a": 1}]


def test_object_memory_is_estimated() -> None:
    """The size of an object column's texts is estimated from a sample."""
    frame = pd.DataFrame({"o": pd.Series(["x" * 100] * 50_000, dtype=object)})
    exact = frame.memory_usage(deep=True).sum()
    assert dataframe(frame)["memory_usage"] == pytest.approx(exact, rel=0.05)


@pytest.mark.parametrize(
    ("asked", "rows"), [(3, 3), (None, 10), (0, 0), (600, 500), (-1, 10), ("5", 10), (True, 10)]
)
def test_preview_rows(asked: Any, rows: int) -> None:
    """The preview has the rows asked for, at most 500, and 10 for an invalid number."""
    found = dataframe(pd.DataFrame({"a": range(1_000)}), preview_rows=asked)
    assert len(found["preview"]) == len(found["index"]["values"]) == rows
    assert len(found["markdown"].splitlines()) == rows + 2


@pytest.mark.parametrize(
    ("shape", "text", "max_bytes", "cut"),
    [
        ((20, 1_200), "", 2**20, "1000 of 1200 columns listed; 200 of 1200 columns in the preview"),
        ((500, 10), "x" * 5_000, 2**20, "rows in the preview"),
        ((500, 150), "x" * 10_000, 2**20, "columns in the preview"),
        ((5, 1_000), "x", 20_000, "columns listed"),
        ((5, 5), "x" * 5_000, 4_000, "0 of 5 columns in the preview"),
    ],
)
def test_preview_is_cut_to_the_bound(
    shape: tuple[int, int], text: str, max_bytes: int, cut: str
) -> None:
    """A report fits into its bound, with a note of what was cut."""
    frame = pd.DataFrame(np.full(shape, text, dtype=object), dtype=object)
    frame.columns = [f"c{number}" for number in range(shape[1])]
    asked = {"result_var": "x", "preview_rows": 500, "max_bytes": max_bytes}
    payload = report({"x": frame}, asked)
    assert json_size(payload) <= max_bytes
    assert cut in payload["truncated"]
    assert payload["dataframe"]["shape"] == list(shape)
    dataframe(frame, preview_rows=500, max_bytes=max_bytes)


@pytest.mark.parametrize("rows", [10, 10_000])
def test_only_the_head_is_read(rows: int) -> None:
    """Only the rows of the preview are converted, and only a sample is measured."""
    shown = 0

    class Cell:
        def __repr__(self) -> str:
            nonlocal shown
            shown += 1
            return "cell"

    frame = pd.DataFrame({"o": pd.Series([Cell() for _ in range(rows)], dtype=object)})
    dataframe(frame, preview_rows=5)
    assert shown == 5


def test_markdown_escapes() -> None:
    """No value breaks the markdown table."""
    frame = pd.DataFrame({"a|b": ["\\|", "x\r\ny", "z" * 100]})
    lines = dataframe(frame)["markdown"].splitlines()
    assert lines[0] == "| a\\|b |"
    assert lines[2:] == ["| \\\\\\| |", "| x\\r\\ny |", f"| {'z' * 79}… |"]


def test_unreadable_table() -> None:
    """A table whose class is broken does not fail the cell."""

    class Broken(pd.DataFrame):
        @property
        def iloc(self) -> Any:
            raise SystemExit

    payload = report({"x": Broken({"a": [1]})}, {"result_var": "x"})
    assert payload == {
        "return_value": None,
        "truncated": "the value could not be read: SystemExit",
    }


def test_cut_values_are_announced() -> None:
    """A cell or a label that is cut is counted in the report's note."""
    frame = pd.DataFrame({"a": ["x" * 10_001, "y"], "b" * 1_001: [1, 2]})
    payload = report({"x": frame}, {"result_var": "x"})
    assert payload["truncated"] == "1 labels cut; 1 values in the preview cut"
    assert "truncated" not in report({"x": frame.iloc[1:, :1]}, {"result_var": "x"})


ARROW: list[tuple[pa.DataType, Any, Any]] = [
    (pa.decimal128(5, 2), Decimal("1.50"), "1.50"),
    (pa.binary(), b"ab", "YWI="),
    (pa.binary(2), b"ab", "YWI="),
    (pa.list_(pa.int8(), 2), [1, 2], [1, 2]),
    (pa.string_view(), "ü", "ü"),
    (pa.binary_view(), b"ab", "YWI="),
    (pa.month_day_nano_interval(), (1, 2, 3), [1, 2, 3]),
    (pa.struct({"a": pa.binary()}), {"a": b"ab"}, {"a": "YWI="}),
    (pa.map_(pa.string(), pa.int8()), [("k", 1)], [["k", 1]]),
    (pa.timestamp("ns"), pd.Timestamp(1), "1970-01-01T00:00:00.000000001"),
    (pa.time64("ns"), 1, "00:00:00.000000001"),
]


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
@pytest.mark.parametrize(("type_", "value", "expected"), ARROW, ids=lambda value: str(value)[:20])
def test_preview_of_arrows_types(kind: str, type_: Any, value: Any, expected: Any) -> None:
    """Columns of Arrow's types have the same preview in a DataFrame and in a Table."""
    array: Any = pa.chunked_array([pa.array([value, None], type_)])
    table: Any = pa.table({"a": array})
    if kind == "pandas":
        table = pd.DataFrame({"a": pd.Series(pd.arrays.ArrowExtensionArray(array))})
    assert [row["a"] for row in dataframe(table)["preview"]] == [expected, None]


def test_labels_with_surrogates() -> None:
    """Labels with lone surrogates are reported as they are."""
    frame = pd.DataFrame([[1]], columns=pd.Index(["\udcff"], dtype=object))
    frame.index = pd.Index(["\ud800"], dtype=object)
    found = dataframe(frame)
    assert found["columns"] == ["\udcff"] and found["index"]["values"] == ["\ud800"]


def test_numbers_of_arrow_that_json_does_not_have() -> None:
    """NaN and infinity of Arrow's floats are reported as those of numpy's."""
    numbers = pa.array([float("nan"), float("inf"), None], pa.float32())
    frame = pd.DataFrame({"f": pd.arrays.ArrowExtensionArray(numbers)})
    for table in (frame, pa.table({"f": numbers})):
        assert [row["f"] for row in dataframe(table)["preview"]] == [None, "Infinity", None]


def test_row_labels_that_pandas_cannot_compare() -> None:
    """Row labels of string_view are reported, though pandas compares them with nothing."""
    labels = pd.arrays.ArrowExtensionArray(pa.array(["a"], pa.string_view()))
    found = dataframe(pd.DataFrame({"n": [1]}, index=pd.Index(pd.Series(labels))))
    assert found["index"]["values"] == ["a"]
