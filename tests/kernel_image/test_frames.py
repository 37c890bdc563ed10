"""A DataFrame becomes the Arrow table that pyarrow makes of it, by a shorter way."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from kernelbroker_kernel import frames

MIXED = {
    "complete": [1.5, 2.0, -0.0],
    "bounds": [1e308, np.inf, -np.inf],
    "missing": [1.0, np.nan, 3.0],
    "whole": [1, 2, 3],
    "short": np.array([1, 2, 3], "f4"),
    "nullable": pd.array([1.5, None, 3], "Float64"),
    "text": ["a", None, "c"],
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
def test_as_pyarrow_has_it(index: Any) -> None:
    """Values, types and what stands beside them are the same, whatever the row labels."""
    frame = pd.DataFrame(MIXED, index=index)
    ours, theirs = frames.arrow(frame), pa.Table.from_pandas(frame)
    assert ours.equals(theirs)
    beside = [json.loads(table.schema.metadata[b"pandas"]) for table in (ours, theirs)]
    assert beside[0] == beside[1]
    pd.testing.assert_frame_equal(ours.to_pandas(), frame, check_freq=False)


@pytest.mark.parametrize(
    "values",
    [np.zeros((0, 2)), np.arange(12.0).reshape(6, 2), np.arange(12.0).reshape(6, 2)[::-1, ::-1]],
    ids=["empty", "rows", "backwards"],
)
def test_memory_of_any_shape(values: Any) -> None:
    """It need not lie column by column, nor forwards."""
    frame = pd.DataFrame(values, columns=["a", "b"])
    assert frames.arrow(frame).equals(pa.Table.from_pandas(frame))
    pd.testing.assert_frame_equal(frames.arrow(frame).to_pandas(), frame)
