"""Python objects are made of the JSON that the kernel writes for them."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
import pytest
from kernelbroker import object_json

ROME = ZoneInfo("Europe/Rome")
OBJECTS: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    ([1, "a", [2.5]], [1, "a", [2.5]]),
    ({"int": hex(10**4000)}, 10**4000),
    ({"float": "nan"}, float("nan")),
    ({"float": "-inf"}, float("-inf")),
    ({"complex": [1.0, {"float": "inf"}]}, complex(1, float("inf"))),
    ({"decimal": "1.50"}, Decimal("1.50")),
    ({"fraction": "-1/3"}, Fraction(-1, 3)),
    ({"uuid": str(UUID(int=5))}, UUID(int=5)),
    ({"bytes": "/w=="}, b"\xff"),
    ({"bytearray": "/w=="}, bytearray(b"\xff")),
    ({"tuple": [1, {"tuple": []}]}, (1, ())),
    ({"set": [1]}, {1}),
    ({"frozenset": ["a"]}, frozenset("a")),
    ({"dict": [[1, {"set": [2]}], ["1", None]]}, {1: {2}, "1": None}),
    ({"range": [0, 10, 3]}, range(0, 10, 3)),
    ({"date": "2020-01-02"}, dt.date(2020, 1, 2)),
    ({"time": "01:02:03.000004+01:00"}, dt.time.fromisoformat("01:02:03.000004+01:00")),
    ({"datetime": "2020-01-02T03:04:05"}, dt.datetime(2020, 1, 2, 3, 4, 5)),
    (
        {"datetime": ["2020-10-25T02:30:00", "Europe/Rome", 1]},
        dt.datetime(2020, 10, 25, 2, 30, tzinfo=ROME, fold=1),
    ),
    ({"timedelta": [-1, 2, 3]}, dt.timedelta(-1, 2, 3)),
    ({"NA": None}, pd.NA),
    ({"NaT": None}, pd.NaT),
    ({"Timestamp": [1, "ns", None]}, pd.Timestamp(1)),
    (
        {"Timestamp": [0, "s", "Europe/Rome"]},
        pd.Timestamp("1970-01-01 01:00", tz=ROME).as_unit("s"),
    ),
    ({"Timestamp": [0, "s", "+01:30"]}, pd.Timestamp("1970-01-01T01:30:00+01:30").as_unit("s")),
    ({"Timedelta": [5, "ms"]}, pd.Timedelta("5ms").as_unit("ms")),
    ({"Period": [600, "M"]}, pd.Period("2020-01", "M")),
    (
        {"Interval": [0, {"numpy": ["float64", 1.5]}, "left"]},
        pd.Interval(0, np.float64(1.5), "left"),
    ),
    ({"numpy": ["float32", 0.5]}, np.float32(0.5)),
    ({"numpy": ["complex64", {"complex": [1, 2]}]}, np.complex64(1 + 2j)),
    ({"numpy": ["datetime64[D]", 1]}, np.datetime64(1, "D")),
]


@pytest.mark.parametrize(
    ("written", "expected"), OBJECTS, ids=[str(each)[:40] for each, _ in OBJECTS]
)
def test_each_type_is_made_again(written: Any, expected: Any) -> None:
    """An object has its type, its value, and the types of the values in it."""
    made = object_json.loads(json.dumps(written))
    assert type(made) is type(expected)
    assert repr(made) == repr(expected)
    assert getattr(made, "unit", None) == getattr(expected, "unit", None)


@pytest.mark.parametrize(
    "expected",
    [
        np.array([[1, 2], [3, 4]], "int8"),
        np.array([], "float64"),
        np.array(5.5),
        np.array([1, None, "a"], object),
        np.array(["2020-01-01", "NaT"], "datetime64[s]"),
    ],
    ids=repr,
)
def test_arrays_keep_dtype_and_shape(expected: np.ndarray[Any, Any]) -> None:
    """Arrays have their dtype, shape and values."""
    items = expected.view("int64") if expected.dtype.kind == "M" else expected
    written = {"array": [str(expected.dtype), list(expected.shape), items.ravel().tolist()]}
    made = object_json.loads(json.dumps(written))
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    assert repr(made) == repr(expected)


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        "{}",
        '{"a": 1, "b": 2}',
        '{"Exception": "a"}',
        '{"fraction": "1e999999999"}',
        '{"datetime": ["2020-01-01T00:00:00", "../../etc/passwd", 0]}',
        '{"Timestamp": [0, "s", "dateutil//etc/passwd"]}',
        '{"array": ["float64", [1000000000, 1000000000], [1.0]]}',
        '{"array": ["V1000000000", [1], [0]]}',
        '{"set": [[1]]}',
        "[" * 100_000,
    ],
)
def test_invalid_text_is_refused(text: str) -> None:
    """Text that describes no object is an error, and allocates nothing."""
    with pytest.raises((ValueError, TypeError, LookupError, ArithmeticError, RecursionError)):
        object_json.loads(text)
