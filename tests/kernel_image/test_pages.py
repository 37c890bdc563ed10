"""Pages of tables, in their own order or in that of a column."""

from __future__ import annotations

from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from kernelbroker_kernel import pages
from kernelbroker_kernel.errors import Refused

ROWS: dict[str, list[Any]] = {"n": [3, 1, 2, 5, 4], "t": ["c", "a", "b", None, "d"]}
TABLES = {"pandas": pd.DataFrame(ROWS), "polars": pl.DataFrame(ROWS), "arrow": pa.table(ROWS)}


@pytest.fixture(params=list(TABLES))
def names(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"df": TABLES[request.param], "x": 1}


def column(page: dict[str, Any], name: str = "n") -> list[Any]:
    return [row[name] for row in page["preview"]]


def test_a_page_has_its_rows_and_the_shape_of_the_table(names: dict[str, Any]) -> None:
    """Rows are counted from the offset; the shape is that of the whole table."""
    page = pages.page(names, "df", 1, 2)
    assert column(page) == [1, 2] and page["shape"] == [5, 2]
    assert pages.page(names, "df", 4, 9)["preview"] == [{"n": 4, "t": "d"}]
    assert pages.page(names, "df", 9, 9)["preview"] == []


def test_a_page_can_be_in_the_order_of_a_column(names: dict[str, Any]) -> None:
    """Rows are sorted up or down; missing values come last."""
    assert column(pages.page(names, "df", 0, 3, "n")) == [1, 2, 3]
    assert column(pages.page(names, "df", 0, 3, "n", True)) == [5, 4, 3]
    assert column(pages.page(names, "df", 0, 5, "t", True), "t")[-1] is None


def test_duplicate_columns_can_be_sorted_by_their_keys() -> None:
    """A column is named by the key that the preview gave it."""
    frame = pd.DataFrame([[1, 9], [2, 8], [3, 7]], columns=["a", "a"])
    keys = pages.page({"df": frame}, "df")["columns"]
    page = pages.page({"df": frame}, "df", 0, 1, keys[1])
    assert page["preview"] == [{keys[0]: 3, keys[1]: 7}]


@pytest.mark.parametrize(
    ("name", "sort_by", "code"),
    [("nothing", None, "not_found"), ("x", None, "conflict"), ("df", "z", "not_found")],
)
def test_a_page_that_is_none_is_refused(
    names: dict[str, Any], name: str, sort_by: str | None, code: str
) -> None:
    """Unknown names and columns, and values that are no tables, are refused."""
    with pytest.raises(Refused) as caught:
        pages.page(names, name, sort_by=sort_by)
    assert caught.value.code == code


def test_values_that_have_no_order_are_refused() -> None:
    """A column that cannot be sorted gives a reason."""
    frame = pd.DataFrame({"a": pd.Series([1, "x"], dtype=object)})
    with pytest.raises(Refused, match="df cannot be read: "):
        pages.page({"df": frame}, "df", sort_by="a")
