"""A DataFrame reaches a client unchanged, or is refused."""

from __future__ import annotations

import datetime as dt
import enum
import json
import re
import uuid
import zoneinfo
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import Any, NamedTuple

import dateutil.tz
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kernelbroker import from_arrow
from kernelbroker_kernel import to_arrow
from kernelbroker_kernel.changes import Changes, Part
from kernelbroker_kernel.errors import Refused
from pandas.testing import assert_frame_equal

TOKYO = pd.to_datetime(["2020-01-01", "2021-01-01"]).tz_localize("Asia/Tokyo")
BINS = pd.cut([1, 5, 9], 3)


def round_trip(frame: pd.DataFrame, changes: Changes | None = None) -> pd.DataFrame:
    table = to_arrow.arrow_table(frame, changes)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    back: pd.DataFrame = from_arrow.read_table(sink.getvalue(), "pandas", 2**30)
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
    "date and moment": of([dt.date(2020, 1, 1), dt.datetime(2020, 1, 2, 3)], dtype=object),
    "time with a zone": of([dt.time(1, 2, tzinfo=dt.UTC)], dtype=object),
    "zones": of(
        [
            dt.datetime(2020, 1, 1, tzinfo=zoneinfo.ZoneInfo("Europe/Paris")),
            dt.datetime(2020, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=-561))),
            dt.datetime(2020, 10, 25, 2, 30, tzinfo=zoneinfo.ZoneInfo("Europe/Paris"), fold=1),
        ],
        dtype=object,
    ),
    "moments of several zones": of([TOKYO[0], pd.Timestamp(0, tz="UTC"), pd.NaT], dtype=object),
    "durations of all sorts": of([pd.Timedelta(1, "ns"), dt.timedelta(-1, 2, 3)], dtype=object),
    "periods and intervals": of([pd.Period("2020-01"), pd.Interval(0, 1.5, "both")], dtype=object),
    "arrays of one": of([np.array([1.5]), np.array([2.5])]),
    "arrays": of([np.array([1.5, 2]), np.array([[2.5], [np.nan]])]),
    "arrays of moments": of([np.array(["2020", "NaT"], "M8[ns]"), None]),
    "empty arrays": of([np.array([]), np.array([], "int8")]),
    "arrays of objects": of([np.array([None, {1}], dtype=object)]),
    "lists of all numbers": of([[1, 2.5], [2]], dtype=object),
    "numbers of numpy": of([np.float32(0.1), np.int8(2), np.bool_(True), 1], dtype=object),
    "moments of numpy": of([np.datetime64(1, "ns"), np.timedelta64(2, "D")], dtype=object),
    "true and 1": of([True, 1], dtype=object),
    "numbers of all sorts": of([1, 2.5, Decimal("1.50"), 1 + 2j, Fraction(1, 3)], dtype=object),
    "large numbers and texts": of([10**4000, 2**64, -(2**70), "x"], dtype=object),
    "missing of all sorts": of([None, np.nan, pd.NA, pd.NaT, Decimal("NaN"), "x"], dtype=object),
    "missing of numpy": of([np.float64("nan"), 1.5], dtype=object),
    "NA alone": of([pd.NA, pd.NA], dtype=object),
    "infinities": of([np.inf, -np.inf, 1], dtype=object),
    "sets": of([{1, 2}, frozenset(), set()], dtype=object),
    "tuples and dicts": of([(1, "a"), {1: {"k": (None,)}}, {}], dtype=object),
    "bytes of all sorts": of([b"\xff", bytearray(b"a"), "a"], dtype=object),
    "UUIDs": of([uuid.UUID(int=1), None], dtype=object),
    "fractions": of([Fraction(1, 3), Fraction(-2)], dtype=object),
    "ranges": of([range(1, 9, 2)], dtype=object),
    "surrogates": of(["\udcff", "x"], dtype=object),
    "complex": of([1 + 2j, complex(np.nan, -0.0)]),
    "short complex": of(np.array([1 + 2j], "complex64")),
    "sparse": of(pd.arrays.SparseArray([0.0, 0.0, 1.5], fill_value=0.0)),
    "sparse and missing": of(pd.arrays.SparseArray([np.nan, 1.5])),
    "sparse numbers": of(pd.arrays.SparseArray([0, 0, 3])),
    "sparse bools": of(pd.arrays.SparseArray([True, False], fill_value=False)),
    "rows of UUIDs": at([uuid.UUID(int=1), uuid.UUID(int=2)]),
    "rows of complex numbers": at([1 + 2j, 2j]),
    "rows of tuples and texts": at(pd.Index([("a", 1), "b"], tupleize_cols=False)),
    "labels with a missing one": with_columns(pd.Index(["a", None])),
    "labels of get_dummies": pd.get_dummies(pd.Series(["a", None]), dummy_na=True),
    "labels of groupby": pd.DataFrame({"k": ["x", None], "v": [1, 2]})
    .groupby("k", dropna=False)
    .sum()
    .T,
    "objects with a missing label": with_columns(pd.Index(["a", None], dtype=object)),
    "categories with a name": pd.DataFrame(
        {"c": pd.Categorical(["a"], categories=pd.Index(["a", "b"], name="letters"))}
    ),
    "labels of tuples and texts": with_columns(pd.Index([("a", 1), "b"], tupleize_cols=False)),
    "labels of numbers": with_columns([1, 2.5, 2**70], dtype=object),
    "levels of one name": at(pd.MultiIndex.from_tuples([(1, "a"), (2, "b")], names=["n", "n"])),
    "unique labels": pd.DataFrame({"a": [1]}).set_flags(allows_duplicate_labels=False),
    "unique labels of numbers": pd.DataFrame([[1, 2]]).set_flags(allows_duplicate_labels=False),
    "attrs of arrays": with_attrs({"a": np.arange(2), "b": 1}),
    "attrs of tuples": with_attrs({"a": (1, 2)}),
    "attrs by number": with_attrs({1: "a"}),
    "NaN and NA": of(
        pd.arrays.FloatingArray(np.array([1.0, np.nan, 2.0]), np.array([0, 0, 1], bool))
    ),
    "range with a number as name": at(pd.RangeIndex(2, 8, 3, name=1.5)),
    "range with a number as name, no columns": pd.DataFrame(index=pd.RangeIndex(3, name=0)),
    "no labels of two levels": pd.DataFrame(columns=pd.MultiIndex.from_arrays([[], []])),
    "no labels of one level": pd.DataFrame(columns=pd.MultiIndex.from_arrays([[]])),
    "levels named by numbers": at(pd.MultiIndex.from_arrays([["x"], [2]], names=["a", 0])),
    "a column and rows of one name": at([2**60 + 1, None], dtype="Int64", name="a"),
    "a column named as pyarrow names rows": at(["x"]).rename(columns={"a": "__index_level_0__"}),
    "no rows of categories as labels": at(pd.CategoricalIndex(["a"], ["a", "b"])).iloc[:0],
    "rows of ordered categories of objects": at(
        pd.CategoricalIndex(pd.Index(["a", "b"], dtype=object), ordered=True)
    ),
    "freq": at(pd.date_range("2020-01-01", periods=3, freq="B", tz="Europe/Rome")),
    "freq of columns": with_columns(pd.timedelta_range("1h", periods=3, freq="h", name="t")),
}
EXACT["no columns, but attrs"].attrs["unit"] = "m"


@pytest.mark.parametrize("name", EXACT)
def test_frames_come_back_equal(name: str) -> None:
    """Values, types, labels, names and attrs are unchanged."""
    frame = EXACT[name]
    before = frame.copy(deep=True)
    back = round_trip(frame)
    assert_frame_equal(
        back, before, check_exact=True, check_column_type="exact", check_index_type="exact"
    )
    for index, expected in ((back.index, before.index), (back.columns, before.columns)):
        assert type(index) is type(expected)
        assert [*map(repr, index)] == [*map(repr, expected)]
        assert repr(list(index.names)) == repr(list(expected.names))
    assert repr(back.attrs) == repr(before.attrs)
    assert back.flags.allows_duplicate_labels == before.flags.allows_duplicate_labels
    if len(before.columns):
        assert [*map(repr, back.iloc[:, 0])] == [*map(repr, before.iloc[:, 0])]
        assert [*map(type, back.iloc[:, 0])] == [*map(type, before.iloc[:, 0])]
    assert_frame_equal(frame, before)  # the user's own frame is unchanged


class Label(str):
    pass


class Number(int):
    pass


class Zone(dt.tzinfo):
    def utcoffset(self, _: Any) -> dt.timedelta:
        return dt.timedelta(hours=1)

    def dst(self, _: Any) -> None:
        return None


class Pair(NamedTuple):
    left: int
    right: int


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


CHANGED: dict[str, tuple[pd.DataFrame, str, list[Any] | None]] = {
    "derived texts": (of([Label("x"), None], dtype=object), "Label as str", ["x", None]),
    "derived numbers": (of([Number(1), 2], dtype=object), "Number as int", [1, 2]),
    "named tuples": (of([Pair(1, 2)], dtype=object), "Pair as tuple", [(1, 2)]),
    "counters": (of([Counter("aa")], dtype=object), "Counter as dict", [{"a": 2}]),
    "enumeration": (of([Color.RED, 1], dtype=object), "Color as text", ["Color.RED", 1]),
    "numbers of an enumeration": (of([Level.HIGH], dtype=object), "Level as text", ["Level.HIGH"]),
    "within lists": (of([[Color.RED, {1}]], dtype=object), "Color as text", [["Color.RED", {1}]]),
    "order of bytes": (of(np.array([1, 2], ">i4")), "order of bytes", [1, 2]),
    "bytes of numpy": (of([np.bytes_(b"x")], dtype=object), "bytes_ as bytes", [b"x"]),
    "zone of the user's": (
        of([dt.datetime(2020, 1, 1, tzinfo=Zone())], dtype=object),
        "datetime as text",
        ["2020-01-01 00:00:00+01:00"],
    ),
    "texts of numpy": (of([np.str_("x")], dtype=object), "str_ as str", ["x"]),
    "long doubles": (of(np.array([1.5], "longdouble")), "longdouble|float128", ["1.5"]),
    "zone of dateutil": (
        of(TOKYO.tz_convert("dateutil/Asia/Tokyo")),
        "time zone tzfile.*, which Arrow has as Asia/Tokyo",
        list(TOKYO),
    ),
    "sparse timestamps": (of(pd.arrays.SparseArray(TOKYO.tz_localize(None))), "not sparse", None),
    "surrogates in texts": (
        of(["\udcff", None], dtype=pd.StringDtype("python", na_value=np.nan)),
        "text",
        ["\\udcff", np.nan],
    ),
    "attrs of objects": (with_attrs({"a": Color.RED, "b": (1,)}), "dict of attrs", None),
    "name of a moment": (at([1, 2], name=TOKYO[0]), "name", None),
    "rows of objects": (at([Color.RED, "x"]), "list of row labels", None),
    "labels of objects": (with_columns(pd.Index([Color.RED, "b"])), "list of column labels", None),
    "categories of objects": (of(pd.Categorical([Color.RED])), "column a", ["Color.RED"]),
}


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
ENTRIES: dict[str, Any] = {}
ENTRIES["k"] = [ENTRIES]
DEEP: Any = 0
for _ in range(20_000):
    DEEP = [DEEP]


@pytest.mark.parametrize("value", [CYCLE, ENTRIES, DEEP], ids=["list", "dict", "deep"])
@pytest.mark.filterwarnings("ignore::kernelbroker.LossyTableWarning")
def test_endless_values_do_not_crash(value: Any) -> None:
    """Values that contain themselves, or thousands of others, are refused, or given as text."""
    frame = of([value], dtype=object)
    with pytest.raises(Refused, match="as text"):
        round_trip(frame)
    assert len(round_trip(frame, Changes(are_allowed=True))) == 1


@pytest.mark.parametrize("name", CHANGED)
def test_frames_that_arrow_changes_are_refused(name: str) -> None:
    """A DataFrame that would change is refused with the reason and the remedy."""
    frame, reason, _ = CHANGED[name]
    with pytest.raises(Refused, match=reason) as caught:
        round_trip(frame)
    assert caught.value.code == "conflict"
    assert "with lossy=True it comes with " in caught.value.message


@pytest.mark.parametrize("name", CHANGED)
@pytest.mark.filterwarnings("ignore::kernelbroker.LossyTableWarning")
def test_lossy_lists_what_it_changes(name: str) -> None:
    """With `lossy` every DataFrame comes, and its metadata lists what was changed."""
    frame, reason, expected = CHANGED[name]
    changes = Changes(are_allowed=True)
    back = round_trip(frame, changes)
    assert back.shape == frame.shape
    if expected is not None:
        assert [*map(repr, back.iloc[:, 0])] == [*map(repr, expected)]
    (change,) = back.attrs["kernelbroker_changes"]
    assert [change] == changes.made
    assert set(change) == {"part", "column", "change"}
    assert re.search(reason, f"{Part(change['part'], change['column'])} {change['change']}")


def test_lossy_changes_nothing_that_is_exact() -> None:
    """A DataFrame that Arrow can carry is the same with `lossy`, and has no changes."""
    changes = Changes(are_allowed=True)
    for frame in EXACT.values():
        back = round_trip(frame, changes)
        assert changes.made == [] and repr(back.attrs) == repr(frame.attrs)


def test_integers_of_any_length() -> None:
    """An integer of more digits than Python writes comes back."""
    values = [10**5000, -(10**5000), "x"]
    back = round_trip(of(values, dtype=object))
    assert back["a"].tolist() == values


def test_each_change_names_its_column() -> None:
    """Columns that are changed are listed one by one; others are not."""
    frame = pd.DataFrame(
        {"a": [1], "b": [Color.RED], ("c", 1): pd.Series([Label("x")], dtype=object)}
    )
    frame.index = pd.Index([Level.HIGH], dtype=object)
    changes = Changes(are_allowed=True)
    table = to_arrow.arrow_table(frame, changes)
    assert json.loads(table.schema.metadata[b"kernelbroker"])["changes"] == changes.made
    found = [(change["part"], change["column"]) for change in changes.made]
    assert found == [("column", "b"), ("column", "('c', 1)"), ("row labels", None)]


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
def test_a_freq_without_a_text_form_is_dropped(freq: Any) -> None:
    """A `freq` without a text form is dropped; the timestamps are unchanged."""
    index = pd.date_range("2020-01-06", periods=2, freq=freq)
    for frame in (at(index), with_columns(index)):
        back = round_trip(frame)
        assert_frame_equal(back, frame, check_freq=False)
        assert back.index.equals(frame.index) and back.columns.equals(frame.columns)


ZONES = {
    "named": (dt.timezone(dt.timedelta(hours=1), "CET"), "UTC+01:00", "CET"),
    "dateutil's UTC": (dateutil.tz.UTC, "UTC", "tzutc()"),
    "dateutil's zone": (
        dateutil.tz.gettz("Europe/Berlin"),
        "Europe/Berlin",
        "tzfile('/usr/share/zoneinfo/Europe/Berlin')",
    ),
}


@pytest.mark.parametrize("name", ZONES)
def test_time_zones_of_other_names(name: str) -> None:
    """A zone that Arrow has by another name is refused; with `lossy` its moments are the same."""
    zone, now, was = ZONES[name]
    frame = pd.DataFrame({"at": pd.to_datetime(["2020-01-01 12:00", None]).tz_localize(zone)})
    problem = f"column at has the time zone {was}, which Arrow has as {now}"
    with pytest.raises(Refused, match=re.escape(problem)):
        round_trip(frame)
    with pytest.warns(UserWarning, match=re.escape(f"it comes with the zone {now}")):
        back = round_trip(frame, Changes(are_allowed=True))
    assert str(back["at"].dt.tz) == now
    assert (back["at"].dropna() == frame["at"].dropna()).all()


@pytest.mark.parametrize(
    "zone",
    [
        dt.timezone(dt.timedelta(0), "UTC"),
        dt.UTC,
        "UTC",
        "Europe/Berlin",
        dt.timezone(dt.timedelta(hours=1)),
    ],
)
def test_time_zones_that_stay(zone: Any) -> None:
    """Of other zones nothing is told."""
    frame = pd.DataFrame({"at": pd.to_datetime(["2020-01-01"]).tz_localize(zone)})
    back = round_trip(frame)
    assert str(back["at"].dt.tz) == str(frame["at"].dt.tz)
    assert back.attrs == {}


def test_decimals_of_different_scales() -> None:
    """Decimals keep their values, although all of a column get the same scale."""
    back = round_trip(of([Decimal("1.5"), Decimal("2.25"), None], dtype=object))
    assert back["a"].tolist() == [Decimal("1.5"), Decimal("2.25"), None]


def test_readable_by_pyarrow_alone() -> None:
    """Readers that ignore our metadata get readable texts and the row labels."""
    frame = pd.DataFrame({"bin": BINS}, pd.Index([1, 2, None], dtype="Int64", name="id"))
    table = to_arrow.arrow_table(frame)
    assert table["bin"].to_pylist() == [str(each) for each in BINS]
    assert table["id"].to_pylist() == [1, 2, None]


def test_labels_beyond_pythons_calendar() -> None:
    """Column labels that have no datetime come back, though they cannot be iterated."""
    moments = pd.arrays.ArrowExtensionArray(pa.array([0, 2**40], pa.timestamp("s")))
    back = round_trip(with_columns(moments))
    assert back.columns.dtype == pd.ArrowDtype(pa.timestamp("s"))
    assert back.columns.astype("int64[pyarrow]").tolist() == [0, 2**40]
