"""What CSV and JSON have of a table: all of it, and alike in each piece."""

from __future__ import annotations

import datetime as dt
import io
import json
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kernelbroker_kernel import spelling

FLOATS = [1e-12, 1 / 3, 1700000000.123456, -0.0, 5e-324, 1.7e308]


def as_json(value: object) -> Any:
    return json.loads("".join(spelling.json(value)))


def as_csv(value: object) -> str:
    return "".join(spelling.csv(value))


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
def test_floats(table: Any) -> None:
    """JSON and CSV have every digit of them."""
    assert [repr(row["a"]) for row in as_json(table)] == [*map(repr, FLOATS)]
    found = pd.read_csv(io.StringIO(as_csv(table)))["a"]
    assert found.tolist() == FLOATS


def test_json_of_all_sorts() -> None:
    """What is missing or no number is null; the rest as it always was."""
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
        {"a": 1.5, "b": 2**60 + 1, "c": "x", "d": 0.1234567890123456}
        | {"e": "2020-01-01T00:00:00.000000", "f": "2020-01-01T00:00:00.123456789"}
        | {"g": 1, "h": True, "i": "2020-01-01T00:00:00.000000"},
        {"a": None, "b": None, "c": {"y": [1 / 3, None]}, "d": None, "e": None, "f": None}
        | {"g": None, "h": False, "i": None},
        {"a": None, "b": 3, "c": 0.5, "d": None, "e": "2020-01-02T00:00:00.000000", "f": None}
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
def test_moments_in_csv(moments: Any, texts: set[str]) -> None:
    """They have one form in the whole column, the shortest that has all of them, also over pieces."""
    first, last = moments
    column = pd.Series([first] * spelling.PIECE_ROWS + [last])
    frame = pd.DataFrame(
        {"t": column.array, "u": range(len(column))}, index=pd.Index(column, name="i")
    )
    text = as_csv(frame)
    for name in ("i", "t"):
        found = pd.read_csv(io.StringIO(text), dtype=str)[name]
        assert set(found.dropna()) == texts
        assert pd.to_datetime(found, utc=True).tolist() == pd.to_datetime(column, utc=True).tolist()
