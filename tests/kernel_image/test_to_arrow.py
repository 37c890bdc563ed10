"""A DataFrame becomes the same Arrow table as pyarrow makes, faster."""

from __future__ import annotations

import json
import time
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kernelbroker_kernel import to_arrow

MIXED = {
    "complete": [1.5, 2.0, -0.0],
    "bounds": [1e308, np.inf, -np.inf],
    "missing": [1.0, np.nan, 3.0],
    "whole": [1, 2, 3],
    "short": np.array([1, 2, 3], "f4"),
    "nullable": pd.array([1.5, None, 3], "Float64"),
    "text": ["a", None, "c"],
    "truth": [True, False, True],
    "unsigned": np.array([0, 1, 2**64 - 1], "u8"),
    "small": np.array([-128, 0, 127], "i1"),
    "moment": pd.to_datetime(["2020-01-01", None, "2020-01-02"]),
    "seconds": pd.to_datetime(["2020-01-01", None, "2020-01-02"]).astype("M8[s]"),
    "duration": pd.to_timedelta([1, None, 3], unit="ns"),
    "half": np.array([0.5, 1, 2], "f2"),
}


@pytest.mark.parametrize(
    "index",
    [
        pd.RangeIndex(3),
        pd.RangeIndex(5, 8, name="row"),
        pd.Index([1.5, np.nan, 3.5]),
        pd.date_range("2026", periods=3, name="when"),
        pd.MultiIndex.from_tuples([("a", 1.0), ("b", 2.0), ("c", 3.0)], names=["x", None]),
    ],
    ids=["plain", "named", "floats", "moments", "levels"],
)
def test_same_table_as_pyarrow(index: Any) -> None:
    """Values, types and metadata are the same, for any row labels."""
    frame = pd.DataFrame(MIXED, index=index)
    ours, theirs = to_arrow.arrow_table(frame), pa.Table.from_pandas(frame)
    assert ours.equals(theirs)
    beside = [json.loads(table.schema.metadata[b"pandas"]) for table in (ours, theirs)]
    assert beside[0] == beside[1]
    pd.testing.assert_frame_equal(ours.to_pandas(), frame, check_freq=False)


@pytest.mark.parametrize(
    "values",
    [np.zeros((0, 2)), np.arange(12.0).reshape(6, 2), np.arange(12.0).reshape(6, 2)[::-1, ::-1]],
    ids=["empty", "rows", "backwards"],
)
def test_columns_of_any_memory_layout(values: Any) -> None:
    """Columns need not be contiguous in memory, nor in order."""
    frame = pd.DataFrame(values, columns=["a", "b"])
    assert to_arrow.arrow_table(frame).equals(pa.Table.from_pandas(frame))
    pd.testing.assert_frame_equal(to_arrow.arrow_table(frame).to_pandas(), frame)


@pytest.mark.slow
def test_many_columns_cost_no_more_than_pyarrow() -> None:
    """A table of thousands of columns takes at most twice the time of pyarrow's own conversion."""
    floats = pd.DataFrame(np.random.default_rng(1).normal(size=(10, 3_000)))
    floats.columns = [f"c{place}" for place in range(3_000)]
    mixed = floats.assign(**{f"c{place}": range(10) for place in range(0, 3_000, 2)})
    for frame in (floats, mixed):
        ours = min(cost(to_arrow.arrow_table, frame) for _ in range(3))
        theirs = min(cost(pa.Table.from_pandas, frame) for _ in range(3))
        assert ours < 2 * theirs, (ours, theirs)


def cost(convert: Any, frame: pd.DataFrame) -> float:
    begin = time.process_time()
    convert(frame)
    return time.process_time() - begin
