"""What `result_var` holds where it is no table."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from kernelbroker_kernel.report import report
from kernelbroker_kernel.values import json_size


def reported(value: Any, **asked: Any) -> dict[str, Any]:
    payload = report({"x": value}, {"result_var": "x", **asked})
    json.dumps(payload, allow_nan=False)
    return payload


AS_THEY_ARE: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (1, 1),
    (float("nan"), None),
    (float("-inf"), "-Infinity"),
    ("text", "text"),
    ("字" * 100_000, "字" * 100_000),
    ({"a": [1, (2, {3})], 4: None}, {"a": [1, [2, [3]]], "4": None}),
    (Counter("aab"), {"a": 2, "b": 1}),
    (list(range(1_000)), list(range(1_000))),
    (np.float64(1.5), 1.5),
    (np.int64(3), 3),
    (np.datetime64("2024-01-01"), "2024-01-01"),
    (pd.NA, None),
    (pd.NaT, None),
]


@pytest.mark.parametrize(("value", "expected"), AS_THEY_ARE, ids=lambda case: type(case).__name__)
def test_as_they_are(value: Any, expected: Any) -> None:
    """Plain values go as they are."""
    assert reported(value) == {"return_value": expected}


DEEP: Any = 0
for _ in range(30):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "kind", "length"),
    [
        ("x" * 100_001, "str", 100_001),
        (["x" * 1_000] * 300, "list", 300),
        (["x" * 100_001], "list", 1),
        ({n: n for n in range(100_000)}, "dict", 100_000),
        (DEEP, "list", 1),
    ],
    ids=["text", "list", "long text in list", "dict", "deep"],
)
def test_too_large_is_summarized(value: Any, kind: str, length: int) -> None:
    """A plain value beyond the limits becomes a summary, and the report says so."""
    payload = reported(value)
    found = payload["return_value"]
    assert (found["type"], found["length"]) == (kind, length)
    assert found["preview"]
    assert len(found["repr"]) <= 1_000
    assert "summarized" in payload["truncated"]
    assert json_size(payload) < 50_000


class Hostile:
    def __len__(self) -> int:
        raise SystemExit

    def __repr__(self) -> str:
        raise SystemExit


class Chatty:
    def __repr__(self) -> str:
        return "x" * 1_000_000


@pytest.mark.parametrize(
    ("value", "kind", "length", "preview"),
    [
        (object(), "object", None, None),
        (Hostile(), "Hostile", None, None),
        (Chatty(), "Chatty", None, None),
        (range(5), "range", 5, None),
        (datetime(2024, 1, 1), "datetime", None, "2024-01-01T00:00:00"),
        (b"ab", "bytes", 2, "YWI="),
        (int, "type", None, None),
        (json, "module", None, None),
        (pd.Index([1, 2]), "Index", 2, "<Index (2,)>"),
        (pl.LazyFrame({"a": [1]}), "LazyFrame", None, None),
    ],
    ids=lambda case: type(case).__name__,
)
def test_summary(value: Any, kind: str, length: int | None, preview: Any) -> None:
    """Anything else becomes its type, length, preview and a short repr."""
    found = reported(value)["return_value"]
    assert set(found) == {"type", "length", "preview", "repr"}
    assert (found["type"], found["length"], found["preview"]) == (kind, length, preview)
    assert 0 < len(found["repr"]) <= 1_000


@pytest.mark.parametrize(
    ("series", "dtype", "data"),
    [
        (pd.Series([1.5, np.nan, 3], name="n"), "float64", [1.5, None]),
        (
            pd.Series(pd.to_datetime(["2024-01-01"] * 3), name="n"),
            None,
            ["2024-01-01T00:00:00"] * 2,
        ),
        (pd.Series([{1}, "b", None], name="n", dtype=object), "object", [[1], "b"]),
        (pl.Series("n", [1, None, 3]), "Int64", [1, None]),
    ],
)
def test_series(series: Any, dtype: str | None, data: list[Any]) -> None:
    """A Series tells its name, dtype, length and first values."""
    found = reported(series, preview_rows=2)["return_value"]
    assert found == {
        "type": "Series",
        "name": "n",
        "dtype": dtype or str(series.dtype),
        "length": 3,
        "data": data,
    }


def test_large_series_is_cut() -> None:
    """A Series of long texts fits into the report, which says what was cut."""
    payload = reported(pd.Series(["x" * 9_000] * 400), preview_rows=400)
    assert json_size(payload) <= 2**20
    assert payload["truncated"] == f"{len(payload['return_value']['data'])} of 400 values"


@pytest.mark.parametrize(
    ("array", "shape", "length", "preview"),
    [
        (np.arange(6).reshape(2, 3), [2, 3], 2, [0, 1, 2]),
        (np.array(5), [], None, [5]),
        (np.ma.array([1.5, 2.5], mask=[True, False]), [2], 2, [None, 2.5]),
        (np.array([np.nan, None], dtype=object), [2], 2, [None, None]),
    ],
)
def test_array(array: Any, shape: list[int], length: int | None, preview: list[Any]) -> None:
    """An array tells its dtype, shape and first items."""
    found = reported(array, preview_rows=3)["return_value"]
    assert found["dtype"] == str(array.dtype)
    assert (found["shape"], found["length"], found["preview"]) == (shape, length, preview)


@pytest.mark.parametrize("name", ["absent", "x.y", "x[0]", "", "1", None, 3, "__import__('os')"])
def test_no_such_variable(name: Any) -> None:
    """What is no name of a variable is answered, never evaluated."""
    payload = report({"x": 1}, {"result_var": name})
    assert payload["return_value"] is None
    assert payload["truncated"].startswith("no variable named ")


def test_value_beyond_max_bytes() -> None:
    """A value that does not fit into the bytes asked for is left out."""
    payload = reported("x" * 5_000, max_bytes=2_000)
    assert payload == {
        "return_value": None,
        "truncated": "the value does not fit into 2000 bytes",
    }
