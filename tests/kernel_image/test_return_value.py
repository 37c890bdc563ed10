"""The report of a `result_var` that is not a table."""

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
    ("字" * 1_000_000, "字" * 1_000_000),
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
def test_plain_values_are_unchanged(value: Any, expected: Any) -> None:
    """Plain values are reported unchanged."""
    assert reported(value) == {"return_value": expected}


DEEP: Any = 0
for _ in range(40):
    DEEP = [DEEP]


@pytest.mark.parametrize(
    ("value", "kind", "length"),
    [
        ("x" * 5_000_000, "str", 5_000_000),
        (["x" * 1_000] * 5_000, "list", 5_000),
        (["x" * 5_000_000], "list", 1),
        ({n: n for n in range(1_000_000)}, "dict", 1_000_000),
        (set(range(1_000_000)), "set", 1_000_000),
        (DEEP, "list", 1),
    ],
    ids=["text", "list", "long text in list", "dict", "set", "deep"],
)
def test_large_values_are_summarized(value: Any, kind: str, length: int) -> None:
    """A plain value beyond the limits becomes a summary, and the report says so."""
    payload = reported(value)
    found = payload["return_value"]
    assert (found["type"], found["length"]) == (kind, length)
    assert found["preview"]
    assert len(found["repr"]) <= 1_000
    assert "summarized" in payload["truncated"]
    assert json_size(payload) < 300_000


def test_a_frame_in_a_dict_is_not_cut() -> None:
    """500 rows of 30 columns, as records with their markdown, shape and summary, are not cut."""
    columns = {
        f"a_longer_column_name_{n}": [
            f"项目编号与客户名称 {n} {row}" if n % 2 else row / 7 for row in range(500)
        ]
        for n in range(30)
    }
    frame = pd.DataFrame(columns)
    value = {
        "markdown": "\n".join("| " + " | ".join(map(str, row)) + " |" for row in frame.to_numpy()),
        "data": frame.to_dict("records"),
        "shape": frame.shape,
        "summary": frame.describe().to_dict(),
    }
    expected = json.loads(json.dumps(value))
    assert json_size(expected) > 1_000_000
    assert reported(value) == {"return_value": expected}


def test_a_summary_has_the_first_hundred_items() -> None:
    """The summary of a large list or dict has its first 100 items or keys."""
    found = reported([{"n": n, "text": "x" * 50} for n in range(100_000)])["return_value"]
    assert found["data"] == [{"n": n, "text": "x" * 50} for n in range(100)]
    found = reported({f"key {n}": "x" * 100 for n in range(100_000)})["return_value"]
    assert found["keys"] == [f"key {n}" for n in range(100)]
    found = reported(["x" * 9_000] * 1_000)["return_value"]
    assert 0 < len(found["data"]) < 100


class MisleadingDict(dict[str, int]):
    def __iter__(self) -> Any:
        raise SystemExit

    keys = __len__ = __iter__


def test_a_summary_runs_no_methods_of_derived_classes() -> None:
    """The summary of an object derived from dict does not call its methods."""
    found = reported(MisleadingDict({f"key {n}": n for n in range(1_000_000)}))["return_value"]
    assert (found["type"], found["length"], len(found["keys"])) == (
        "MisleadingDict",
        1_000_000,
        100,
    )


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
def test_other_objects_are_summarized(
    value: Any, kind: str, length: int | None, preview: Any
) -> None:
    """Anything else becomes its type, length, preview and a short repr."""
    found = reported(value)["return_value"]
    assert set(found) == {"type", "length", "preview", "repr"}
    assert (found["type"], found["length"], found["preview"]) == (kind, length, preview)
    assert 0 < len(found["repr"]) <= 1_000


@pytest.mark.parametrize(
    ("series", "dtype", "data"),
    [
        (pd.Series([1.5, np.nan, 3], name="n"), "float64", [1.5, None, 3.0]),
        (
            pd.Series(pd.to_datetime(["2024-01-01"] * 3), name="n"),
            None,
            ["2024-01-01T00:00:00"] * 3,
        ),
        (pd.Series([{1}, "b", None], name="n", dtype=object), "object", [[1], "b", None]),
        (pl.Series("n", [1, None, 3]), "Int64", [1, None, 3]),
    ],
)
def test_series_is_summarized(series: Any, dtype: str | None, data: list[Any]) -> None:
    """A Series is reported with its name, dtype, length and first values."""
    found = reported(series, preview_rows=2)["return_value"]
    assert found == {
        "type": "Series",
        "name": "n",
        "dtype": dtype or str(series.dtype),
        "length": 3,
        "data": data,
    }


@pytest.mark.parametrize(("preview_rows", "expected"), [(2, 100), (10, 100), (250, 250)])
def test_a_long_series_has_its_first_hundred_values(preview_rows: int, expected: int) -> None:
    """A long Series is reported with its first 100 values, or more if more rows are requested."""
    payload = reported(pd.Series(range(1_000)), preview_rows=preview_rows)
    assert payload["return_value"]["data"] == list(range(expected))
    assert "truncated" not in payload


def test_cut_values_are_announced() -> None:
    """A text above 10,000 characters in a Series or an array is cut, and the report says so."""
    texts = ["x" * 10_001, "y"]
    for value in (pd.Series(texts), np.array(texts, dtype=object)):
        assert reported(value)["truncated"] == "1 values cut"
    assert "truncated" not in reported(pd.Series(["x" * 10_000]))


def test_an_integer_of_any_length_is_whole() -> None:
    """An integer of more digits than Python writes is hexadecimal text."""
    assert reported(10**5000) == {"return_value": hex(10**5000)}


def test_polars_nanoseconds() -> None:
    """Timestamps, times and durations of polars keep their nanoseconds."""
    for dtype, expected in [
        (pl.Datetime("ns"), "1970-01-01T00:00:00.000000001"),
        (pl.Duration("ns"), "P0DT0H0M0.000000001S"),
        (pl.Time(), "00:00:00.000000001"),
        (pl.List(pl.Datetime("ns")), ["1970-01-01T00:00:00.000000001"]),
    ]:
        plain = pl.Series([[1]] if dtype == pl.List else [1])
        assert reported(plain.cast(dtype))["return_value"]["data"] == [expected]


def test_large_series_is_cut() -> None:
    """A Series of long texts is cut to the limit of the report, with a note of what is missing."""
    payload = reported(pd.Series(["x" * 9_000] * 500), preview_rows=500, max_bytes=2**20)
    assert json_size(payload) <= 2**20
    assert payload["truncated"] == f"{len(payload['return_value']['data'])} of 500 values"


@pytest.mark.parametrize(
    ("array", "shape", "length", "preview"),
    [
        (np.arange(6).reshape(2, 3), [2, 3], 2, [0, 1, 2, 3, 4, 5]),
        (np.array(5), [], None, [5]),
        (np.ma.array([1.5, 2.5], mask=[True, False]), [2], 2, [None, 2.5]),
        (np.array([np.nan, None], dtype=object), [2], 2, [None, None]),
        (np.array([[1, 2], [3, 4]]).view(np.matrix), [2, 2], 2, [1, 2, 3, 4]),
    ],
)
def test_array_is_summarized(
    array: Any, shape: list[int], length: int | None, preview: list[Any]
) -> None:
    """An array is reported with its dtype, shape and first items."""
    found = reported(array, preview_rows=3)["return_value"]
    assert found["dtype"] == str(array.dtype)
    assert (found["shape"], found["length"], found["preview"]) == (shape, length, preview)


@pytest.mark.parametrize("name", ["absent", "x.y", "x[0]", "", "1", None, 3, "__import__('os')"])
def test_invalid_names_are_not_evaluated(name: Any) -> None:
    """A name that does not exist, or is not an identifier, gives a message and is not evaluated."""
    payload = report({"x": 1}, {"result_var": name})
    assert payload["return_value"] is None
    assert payload["truncated"].startswith("no variable named ")


def test_value_beyond_max_bytes() -> None:
    """A value larger than `max_bytes` is summarized; a summary that is also too large is left out."""
    payload = reported("x" * 50_000, max_bytes=20_000)
    assert payload["return_value"]["length"] == 50_000
    assert payload["truncated"] == "too large or too deep for a value: summarized"
    assert reported("x" * 50_000, max_bytes=2_000) == {
        "return_value": None,
        "truncated": "the value does not fit into 2000 bytes",
    }
