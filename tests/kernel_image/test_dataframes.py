"""A DataFrame that leaves a kernel comes to a client as it was, or not at all."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kernelbroker import arrow
from kernelbroker_kernel import frames
from kernelbroker_kernel.refusals import Refused
from pandas.testing import assert_frame_equal

TOKYO = pd.to_datetime(["2020-01-01", "2021-01-01"]).tz_localize("Asia/Tokyo")
BINS = pd.cut([1, 5, 9], 3)


def there_and_back(frame: pd.DataFrame) -> pd.DataFrame:
    table = frames.arrow(frame)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    back: pd.DataFrame = arrow._made(sink.getvalue(), "pandas")
    return back


def of(values: Any, **options: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": pd.Series(values, **options)})


def at(index: Any, **options: Any) -> pd.DataFrame:
    index = pd.Index(index, **options) if options or not isinstance(index, pd.Index) else index
    return pd.DataFrame({"a": range(len(index))}, index=index)


def with_columns(columns: Any, **options: Any) -> pd.DataFrame:
    return pd.DataFrame([range(len(columns))], columns=pd.Index(columns, **options))


def with_attrs(attrs: dict[Any, Any]) -> pd.DataFrame:
    frame = pd.DataFrame({"a": [1]})
    frame.attrs.update(attrs)
    return frame


EXACT = {
    "cut": of(BINS),
    "cut and missing": of(pd.cut([1, 5, np.nan, 50], [0, 2, 10], right=False)),
    "qcut": of(pd.qcut([1.5, 2, 9], 2)),
    "categories with a zone": of(pd.Categorical(TOKYO)),
    "categories of moments": of(pd.Categorical(TOKYO.tz_localize(None), ordered=True)),
    "categories of dates": of(pd.Categorical([dt.date(2020, 1, 1), dt.date(2020, 1, 2)])),
    "categories of objects": of(pd.Categorical(pd.Series(["a", "b"], dtype=object))),
    "categories of all sorts": of(pd.Categorical([1, "1", None, 2.5])),
    "categories of periods": of(pd.Categorical(pd.period_range("2020", periods=2, freq="M"))),
    "no categories": of(pd.Categorical([None, None], categories=[])),
    "no rows of bins": of(BINS).iloc[:0],
    "no rows of categories": of(pd.Categorical(["b"], ["b", "a"], ordered=True)).iloc[:0],
    "dates": of([dt.date(2020, 1, 1), None], dtype=object),
    "times": of([dt.time(1, 2, 3, 4), None], dtype=object),
    "moments as objects": of([dt.datetime(2020, 1, 1, 2), None], dtype=object),
    "lists": of([[1, 2], [], [3, None]], dtype=object),
    "lists of Arrow's": of([[1], None], dtype=pd.ArrowDtype(pa.list_(pa.int8()))),
    "dictionary of Arrow's": of(["x"], dtype=pd.ArrowDtype(pa.dictionary(pa.int8(), pa.string()))),
    "texts of Arrow's": of(["x", None], dtype=pd.ArrowDtype(pa.string())),
    "decimals of Arrow's": of([Decimal("1.5")], dtype=pd.ArrowDtype(pa.decimal128(5, 2))),
    "moments of Arrow's": of([TOKYO[0]], dtype=pd.ArrowDtype(pa.timestamp("ns", "Asia/Tokyo"))),
    "rows of Arrow's": at([2**60 + 1, None], dtype=pd.ArrowDtype(pa.int64())),
    "large numbers": at([2**60 + 1, None], dtype="Int64", name="id"),
    "large numbers, all there": at([2**60 + 1, 7], dtype="Int64"),
    "levels": at(pd.MultiIndex.from_arrays([pd.array([2**60 + 1, None], "Int64"), ["x", "y"]])),
    "one level": at(pd.MultiIndex.from_arrays([["x", "y"]], names=["l"])),
    "rows of objects": at(["x", "y"], dtype=object),
    "rows of objects and NaN": at(["x", np.nan], dtype=object),
    "rows of objects and None": at(["x", None], dtype=object),
    "rows of dates": at([dt.date(2020, 1, 1), dt.date(2020, 1, 2)]),
    "rows of bins": pd.DataFrame({"a": [1.5, 2, 3]}, BINS).groupby(level=0, observed=False).mean(),
    "rows of NA texts": at(["x", None], dtype="string"),
    "name 0": pd.DataFrame([["a", 1], ["b", 2]]).set_index(0),
    "name of two": at([5, 6], name=("a", 1)),
    "names of columns": with_columns(["a", "b"], name=("q", 1)),
    "labels in a row": with_columns(pd.RangeIndex(3, name="z")),
    "labels of NA texts": with_columns(["a", "b"], dtype="string"),
    "labels of bins": with_columns(BINS),
    "labels with surrogates": with_columns(["\udcff", "b"], dtype=object),
    "labels of all sorts": with_columns([0, "a", None], dtype=object, name="n"),
    "no columns": pd.DataFrame(index=range(5)),
    "no columns, but attrs": pd.DataFrame(index=pd.RangeIndex(2, 8, 3, name="k")),
    "no columns, but texts": pd.DataFrame(index=list("abc")),
    "nothing": pd.DataFrame(),
    "attrs": with_attrs({"unit": "m", "nested": {"a": [1, 2.5, None]}}),
    "freq": at(pd.date_range("2020-01-01", periods=3, freq="B", tz="Europe/Rome")),
    "freq of columns": with_columns(pd.timedelta_range("1h", periods=3, freq="h", name="t")),
}
EXACT["no columns, but attrs"].attrs["unit"] = "m"


@pytest.mark.parametrize("name", EXACT)
def test_exact(name: str) -> None:
    """Values, types, labels, names and what is attached are those of before."""
    frame = EXACT[name]
    before = frame.copy(deep=True)
    back = there_and_back(frame)
    assert_frame_equal(
        back, before, check_exact=True, check_column_type="exact", check_index_type="exact"
    )
    for index, expected in ((back.index, before.index), (back.columns, before.columns)):
        assert type(index) is type(expected)
        assert [*map(repr, index)] == [*map(repr, expected)]
        assert repr(list(index.names)) == repr(list(expected.names))
    assert back.attrs == before.attrs
    if len(before.columns):
        assert [*map(repr, back.iloc[:, 0])] == [*map(repr, before.iloc[:, 0])]
    assert_frame_equal(frame, before)  # which is the user's, and stays as it is


REFUSED = {
    "date and moment": of([dt.date(2020, 1, 1), dt.datetime(2020, 1, 2, 3)], dtype=object),
    "time with a zone": of([dt.time(1, 2, tzinfo=dt.UTC)], dtype=object),
    "arrays of one": of([np.array([1.5]), np.array([2.5])]),
    "arrays": of([np.array([1.5, 2]), np.array([2.5, 3])]),
    "empty arrays": of([np.array([]), np.array([])]),
    "lists of all numbers": of([[1, 2.5], [2]], dtype=object),
    "numbers of numpy": of([np.float32(0.1), np.float32(0.2)], dtype=object),
    "texts of numpy": of([np.str_("x")], dtype=object),
    "true and 1": of([True, 1], dtype=object),
    "NaN and NA": of(
        pd.arrays.FloatingArray(np.array([1.0, np.nan, 2.0]), np.array([0, 0, 1], bool))
    ),
    "zone of dateutil": of(TOKYO.tz_convert("dateutil/Asia/Tokyo")),
    "attrs of arrays": with_attrs({"a": np.arange(2)}),
    "attrs of tuples": with_attrs({"a": (1, 2)}),
    "attrs by number": with_attrs({1: "a"}),
    "name of a moment": at([1, 2], name=TOKYO[0]),
    "rows of all sorts": at([object(), "x"]),
    "labels of all sorts": with_columns(pd.Index([("a", 1), "b"], tupleize_cols=False)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    """What would not come back is refused in words, by the kernel."""
    with pytest.raises(Refused, match=r"Arrow|attrs|name") as caught:
        there_and_back(REFUSED[name])
    assert caught.value.code == "conflict"


@pytest.mark.parametrize(
    "freq",
    [
        pd.offsets.CustomBusinessDay(weekmask="Mon Tue"),
        pd.offsets.BusinessHour(start="08:00", end="12:00"),
        pd.offsets.Easter(),
        pd.DateOffset(months=1, days=2),
    ],
    ids=str,
)
def test_freq_that_has_no_text(freq: Any) -> None:
    """It is let go, of rows and columns; the moments are the same."""
    index = pd.date_range("2020-01-06", periods=2, freq=freq)
    for frame in (at(index), with_columns(index)):
        back = there_and_back(frame)
        assert_frame_equal(back, frame, check_freq=False)
        assert back.index.equals(frame.index) and back.columns.equals(frame.columns)


def test_decimals() -> None:
    """They are equal, though all of a column get as many places."""
    back = there_and_back(of([Decimal("1.5"), Decimal("2.25"), None], dtype=object))
    assert back["a"].tolist() == [Decimal("1.5"), Decimal("2.25"), None]


def test_for_others() -> None:
    """Who knows nothing of what stands beside the data has readable texts and the row labels."""
    frame = pd.DataFrame({"bin": BINS}, pd.Index([1, 2, None], dtype="Int64", name="id"))
    table = frames.arrow(frame)
    assert table["bin"].to_pylist() == [str(each) for each in BINS]
    assert table["id"].to_pylist() == [1, 2, None]
