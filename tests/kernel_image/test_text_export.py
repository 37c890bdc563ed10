"""CSV and JSON of a table: complete, and the same in each piece."""

from __future__ import annotations

import csv
import datetime as dt
import io
import json
import math
import uuid
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from kernelbroker_kernel import text_export

FLOATS = [1e-12, 1 / 3, 1700000000.123456, -0.0, 5e-324, 1.7e308]


def as_json(value: object) -> Any:
    return json.loads("".join(text_export.json_pieces(value)))


def as_csv(value: object) -> str:
    return "".join(text_export.csv_pieces(value))


@pytest.mark.parametrize(
    "table",
    [
        pd.DataFrame({"a": FLOATS}),
        pd.DataFrame({"a": pd.Series(FLOATS, dtype=object)}),
        pd.DataFrame({"a": pd.array(FLOATS, "Float64")}),
        pd.DataFrame({"a": pd.Categorical(FLOATS)}),
        pd.DataFrame({"a": pd.Series(FLOATS, dtype=pd.ArrowDtype(pa.float64()))}),
        pd.DataFrame({"b": range(6)}, index=pd.Index(FLOATS, name="a")),
        pa.table({"a": FLOATS}),
    ],
    ids=["plain", "objects", "nullable", "categories", "arrow", "labels", "table"],
)
def test_floats_are_exact(table: Any) -> None:
    """JSON and CSV have every digit of a float."""
    assert [repr(row["a"]) for row in as_json(table)] == [*map(repr, FLOATS)]
    found = pd.read_csv(io.StringIO(as_csv(table)))["a"]
    assert found.tolist() == FLOATS


def test_json_form_of_all_types() -> None:
    """Missing values and NaN are null; other values keep their form."""
    table = pd.DataFrame(
        {
            "a": [1.5, np.nan, np.inf],
            "b": pd.array([2**60 + 1, None, 3], "Int64"),
            "c": pd.Series(["x", {"y": [1 / 3, np.nan]}, np.float32(0.5)], dtype=object),
            "d": pd.Series([Decimal("0.1234567890123456"), None, Decimal("NaN")], dtype=object),
            "e": pd.to_datetime(["2020-01-01", None, "2020-01-02"]).astype("datetime64[us]"),
            "f": pd.to_datetime(["2020-01-01T00:00:00.123456789", None, None]).astype(
                "datetime64[ns]"
            ),
            "g": pd.Categorical([1, None, 2]),
            "h": [True, False, True],
            "i": pd.Series([dt.date(2020, 1, 1), None, b"\xff"], dtype=object),
        }
    )
    assert as_json(table) == [
        {"a": 1.5, "b": 2**60 + 1, "c": "x", "d": "0.1234567890123456"}
        | {"e": "2020-01-01T00:00:00.000000", "f": "2020-01-01T00:00:00.123456789"}
        | {"g": 1, "h": True, "i": "2020-01-01"},
        {"a": None, "b": None, "c": {"y": [1 / 3, None]}, "d": None, "e": None, "f": None}
        | {"g": None, "h": False, "i": None},
        {"a": "Infinity", "b": 3, "c": 0.5, "d": None, "e": "2020-01-02T00:00:00.000000", "f": None}
        | {"g": 2, "h": True, "i": "/w=="},
    ]
    assert as_json(pd.DataFrame(index=range(2))) == [{}, {}]
    assert as_json(pd.DataFrame({"a": []})) == []


DAY, SECOND = "2020-01-01", "2020-01-02 03:04:05"


@pytest.mark.parametrize(
    ("moments", "texts"),
    [
        (pd.to_datetime([DAY, None]), {DAY}),
        (pd.to_datetime([f"{DAY} 00:00:00", SECOND]), {f"{DAY}T00:00:00", "2020-01-02T03:04:05"}),
        (
            pd.to_datetime([DAY, f"{DAY} 00:00:00.000000001"], format="ISO8601"),
            {f"{DAY}T00:00:00.000000000", f"{DAY}T00:00:00.000000001"},
        ),
        (
            pd.to_datetime(["2020-01-01", "2020-07-01"]).tz_localize("America/New_York"),
            {"2020-01-01T00:00:00-05:00", "2020-07-01T00:00:00-04:00"},
        ),
        (pd.to_datetime([DAY, None]).tz_localize("Asia/Kolkata"), {f"{DAY}T00:00:00+05:30"}),
    ],
    ids=["days", "seconds", "nanoseconds", "zone", "half hours"],
)
def test_timestamps_in_csv(moments: Any, texts: set[str]) -> None:
    """All timestamps of a column have the same form, the shortest that fits, also over pieces."""
    first, last = moments
    column = pd.Series([first] * text_export.PIECE_ROWS + [last])
    frame = pd.DataFrame(
        {"t": column.array, "u": range(len(column))}, index=pd.Index(column, name="i")
    )
    text = as_csv(frame)
    for name in ("i", "t"):
        found = pd.read_csv(io.StringIO(text), dtype=str)[name]
        assert set(found.dropna()) == texts
        assert pd.to_datetime(found, utc=True).tolist() == pd.to_datetime(column, utc=True).tolist()


UTC_MOMENT = pd.Timestamp("2020-01-01T12:00:00.000000001", tz="UTC")
ARROW: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "list": (pa.list_(pa.int64()), [list(range(3_000)), None], [list(range(3_000)), None]),
    "fixed list": (pa.list_(pa.int8(), 2), [[1, None], None], [[1, None], None]),
    "list of bytes": (pa.list_(pa.binary()), [[b"\xff"]], [["/w=="]]),
    "list of moments": (
        pa.list_(pa.timestamp("ns", "UTC")),
        [[UTC_MOMENT]],
        [["2020-01-01T12:00:00.000000001+00:00"]],
    ),
    "struct": (pa.struct({"a": pa.float64()}), [{"a": math.inf}], [{"a": "Infinity"}]),
    "map": (pa.map_(pa.string(), pa.int8()), [[("k", 1)]], [[["k", 1]]]),
    "binary": (pa.binary(), [b"\xff", None], ["/w==", None]),
    "fixed binary": (pa.binary(2), [b"ab"], ["YWI="]),
    "binary view": (pa.binary_view(), [b"ab"], ["YWI="]),
    "string view": (pa.string_view(), ["ü", None], ["ü", None]),
    "decimal": (pa.decimal128(38, 2), [Decimal("1.50"), None], ["1.50", None]),
    "moment": (
        pa.timestamp("ns"),
        [pd.Timestamp("2020-01-01T12:00:00.000000001"), None],
        ["2020-01-01T12:00:00.000000001", None],
    ),
    "zone": (
        pa.timestamp("s", "Asia/Kolkata"),
        [dt.datetime(2020, 1, 1, tzinfo=dt.UTC)],
        ["2020-01-01T05:30:00+05:30"],
    ),
    "date": (pa.date32(), [dt.date(2020, 1, 1), None], ["2020-01-01", None]),
    "date64": (pa.date64(), [dt.date(2020, 1, 1)], ["2020-01-01"]),
    "time": (pa.time64("us"), [dt.time(1, 2, 3, 4)], ["01:02:03.000004"]),
    "duration": (
        pa.duration("ns"),
        [pd.Timedelta(-1, "ns"), None],
        ["-P0DT0H0M0.000000001S", None],
    ),
    "months": (pa.month_day_nano_interval(), [(1, 2, 3)], [[1, 2, 3]]),
    "large": (pa.uint64(), [2**64 - 1, None], [2**64 - 1, None]),
    "bool": (pa.bool_(), [True, None], [True, None]),
    "null": (pa.null(), [None], [None]),
    "short float": (pa.float32(), [0.1, math.nan, None], [0.1, None, None]),
    "half float": (pa.float16(), [0.5], [0.5]),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), ["a", None], ["a", None]),
    "dictionary of bytes": (pa.dictionary(pa.int8(), pa.binary()), [b"ab"], ["YWI="]),
}


@pytest.mark.parametrize("kind", ["pandas", "pyarrow"])
@pytest.mark.parametrize("name", ARROW)
def test_columns_of_arrows_types(name: str, kind: str) -> None:
    """Every type of Arrow has its documented form in JSON and CSV, in a DataFrame and in a Table."""
    type_, values, expected = ARROW[name]
    array: Any = pa.array([*map(np.float16, values)] if name == "half float" else values, type_)
    table: Any = pa.table({"a": array, "n": range(len(values))})
    if kind == "pandas":
        column = pd.Series(pd.arrays.ArrowExtensionArray(pa.chunked_array([array])))
        table = pd.DataFrame({"a": column, "n": range(len(values))})
    assert [row["a"] for row in as_json(table)] == expected
    rows = csv.DictReader(io.StringIO(as_csv(table), newline=""))
    for row, value in zip(rows, expected, strict=True):
        is_nested = isinstance(value, list | dict)
        assert row["a"] == ("" if value is None else json.dumps(value) if is_nested else str(value))


def test_dates_beyond_pythons_calendar() -> None:
    """Dates that Python has no type for are text as well."""
    table = pa.table({"a": pa.array([10**7], pa.date32())})
    assert as_json(table)[0]["a"].startswith("29349-")


def test_run_ends() -> None:
    """A run-end encoded column has its values."""
    encoded = pc.run_end_encode(pa.array(["x", "x", None]))
    assert as_json(pa.table({"a": encoded})) == [{"a": "x"}, {"a": "x"}, {"a": None}]


OBJECTS: list[tuple[Any, Any]] = [
    (Decimal("0.1234567890123456789"), "0.1234567890123456789"),
    (Decimal("-Infinity"), "-Infinity"),
    (Fraction(1, 3), "1/3"),
    (uuid.UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (10**5000, hex(10**5000)),
    (1 + 2j, "(1+2j)"),
    ({"k": {1, 2}, 3: b"\xff"}, {"k": [1, 2], "3": "/w=="}),
    (np.arange(3_000), list(range(3_000))),
    ("x" * 100_000, "x" * 100_000),
    (dt.timedelta(days=1, seconds=1), "P1DT0H0M1S"),
    (pd.Period("2020-01"), "2020-01"),
    (np.float32(math.inf), "Infinity"),
    (-math.inf, "-Infinity"),
    (pd.NA, None),
]


@pytest.mark.parametrize(("value", "expected"), OBJECTS, ids=lambda value: type(value).__name__)
def test_python_objects(value: Any, expected: Any) -> None:
    """A Python object is whole in JSON; only infinities have another form in CSV."""
    table = pd.DataFrame({"a": pd.Series([value, "text"], dtype=object), "b": 1})
    assert as_json(table)[0]["a"] == expected
    csv.field_size_limit(10**6)
    cell = next(csv.DictReader(io.StringIO(as_csv(table), newline="")))["a"]
    if "Infinity" in str(expected):
        assert float(cell) == float(value)
    elif expected is None:
        assert cell == ""
    else:
        assert cell == (expected if isinstance(expected, str) else json.dumps(expected))


DTYPES: list[tuple[Any, list[Any]]] = [
    (pd.Categorical([math.inf, None, 0.1]), ["Infinity", None, 0.1]),
    (pd.Categorical([b"\xff", b""]), ["/w==", ""]),
    (pd.array([True, None], "boolean"), [True, None]),
    (pd.array([2**60 + 1, None], "Int64"), [2**60 + 1, None]),
    (pd.array([0.1, None], "Float32"), [0.1, None]),
    (np.array([0.1, np.inf], "f4"), [0.1, "Infinity"]),
    (pd.array(["x", None], "string"), ["x", None]),
    (pd.arrays.SparseArray([0.0, 1.5]), [0.0, 1.5]),
    (pd.to_timedelta([1, None], unit="ns"), ["P0DT0H0M0.000000001S", None]),
    (pd.period_range("2020-01", periods=1), ["2020-01-01"]),
    (pd.interval_range(0, 1), ["(0, 1]"]),
    (np.array([1 + 2j]), ["(1+2j)"]),
]


@pytest.mark.parametrize(("values", "expected"), DTYPES, ids=lambda value: str(value)[:30])
def test_json_of_dtypes(values: Any, expected: list[Any]) -> None:
    """Each dtype of pandas has its documented form."""
    assert [row["a"] for row in as_json(pd.DataFrame({"a": values}))] == expected


def test_offsets_keep_their_seconds() -> None:
    """The offset of a zone's local mean time has seconds."""
    moments = pd.Series(pd.to_datetime(["1900-01-01"])).dt.tz_localize("Europe/Paris")
    frame = pd.DataFrame({"t": moments, "n": 1})
    assert as_csv(frame).splitlines()[1] == "1900-01-01T00:00:00+00:09:21,1"
    assert dt.datetime.fromisoformat(as_json(frame)[0]["t"]) == moments[0]


@pytest.mark.parametrize("text", ["a\rb", "a\nb", "a\r\nb", 'a"b', "a,b", "\r", " a "])
def test_texts_in_csv(text: str) -> None:
    """Every reader of CSV gets the same text, whatever line breaks it contains."""
    found = as_csv(pd.DataFrame({text: [text], "n": [1]}))
    assert list(csv.reader(io.StringIO(found, newline=""))) == [[text, "n"], [text, "1"]]
    assert pd.read_csv(io.StringIO(found))[text].tolist() == [text]


def test_polars_types_without_arrow_form_are_texts() -> None:
    """What Arrow has no type for is text in CSV and JSON."""
    wide = pl.DataFrame({"a": pl.Series([2**100, None], dtype=pl.Int128)})
    assert as_json(wide) == [{"a": str(2**100)}, {"a": None}]


def test_values_that_contain_themselves() -> None:
    """A value that contains itself, or is very deep, is text."""
    cycle: list[Any] = []
    cycle.append(cycle)
    deep: Any = 0
    for _ in range(20_000):
        deep = [deep]
    table = pd.DataFrame({"a": pd.Series([cycle, deep], dtype=object), "n": 1})
    assert as_json(table)[0]["a"] == "[[...]]"
    assert as_csv(table).splitlines()[1] == "[[...]],1"


def test_row_labels_with_names_and_labels_that_repeat() -> None:
    """Equal names of levels, and row labels beside labels that must be unique, become columns."""
    index = pd.MultiIndex.from_arrays([["x"], ["y"]], names=["n", "n"])
    assert as_csv(pd.DataFrame({"a": [1]}, index)) == "n,n.1,a\nx,y,1\n"
    index = pd.MultiIndex.from_arrays([["x"], ["y"]], names=["n", 0])
    assert as_csv(pd.DataFrame({"a": [1]}, index)) == "n,0,a\nx,y,1\n"
    frame = pd.DataFrame({0: [1], 1: [2]}, index=["x"]).set_flags(allows_duplicate_labels=False)
    assert as_csv(frame) == "index,0,1\nx,1,2\n"
    assert as_json(frame) == [{"index": "x", "0": 1, "1": 2}]
