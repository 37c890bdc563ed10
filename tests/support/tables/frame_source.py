"""The names in the expressions that tests make tables of. Each interpreter evaluates them by itself.

Imports nothing of this project, so that a client process is as it is for a user.
"""

from __future__ import annotations

import datetime as dt
import enum
import uuid
import warnings
import zoneinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa


class Color(enum.Enum):
    RED = 1
    BLUE = 2


def frame(
    columns: list[Any],
    labels: Any = None,
    index: Any = None,
    attrs: dict[Any, Any] | None = None,
    unique: bool = False,
) -> pd.DataFrame:
    """A DataFrame of columns, which keep their dtypes."""
    rows = len(columns[0]) if columns else 0 if index is None else len(index)
    series = {
        place: pd.Series(column, pd.RangeIndex(rows)) if type(column) is not pd.Series else column
        for place, column in enumerate(columns)
    }
    made = pd.DataFrame(series, index=pd.RangeIndex(rows))
    if labels is not None:
        made.columns = labels
    elif columns:
        made.columns = [f"c{place}" for place in range(len(columns))]
    if index is not None:
        made.index = index
    if attrs is not None:
        made.attrs.update(attrs)
    if unique:
        made.flags.allows_duplicate_labels = False
    return made


def objects(values: list[Any]) -> pd.Series:
    """A column of these Python objects, unchanged."""
    array = np.empty(len(values), object)
    for place, value in enumerate(values):
        array[place] = value
    return pd.Series(array, dtype=object)


def multi(levels: list[Any], names: list[Any] | None = None) -> pd.MultiIndex:
    index = pd.MultiIndex.from_arrays(levels)
    if names is not None:
        index.names = names
    return index


NAMES: dict[str, Any] = {
    each.__name__.rpartition(".")[2]: each
    for each in (uuid, zoneinfo, Decimal, Fraction, Color, frame, objects, multi)
}
NAMES |= {"pd": pd, "np": np, "pa": pa, "dt": dt}


def evaluate(expression: str) -> Any:
    """The table. Each time a new one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return eval(expression, dict(NAMES))
