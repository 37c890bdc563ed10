"""Where two DataFrames differ, stricter than pandas' own comparison.

Not compared, as docs/api.md says: a `freq` that has no text form, the way in which pandas stores texts,
the `freq` of levels of a MultiIndex and whether a level is a RangeIndex, the number of places of a
Decimal in a column of Decimals, and where the blocks of a frame are.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd

Difference = tuple[str, int | None, str]
"""The part (as in `LossyTableWarning.changes`), the position of a column, and words for a person."""


def differences(made: pd.DataFrame, expected: pd.DataFrame) -> list[Difference]:
    """Where `made` differs from `expected`."""
    return list(_differences(made, expected))


def _differences(made: pd.DataFrame, expected: pd.DataFrame) -> Iterator[Difference]:
    if type(made) is not pd.DataFrame:
        yield "column", None, f"{type(made)} is no DataFrame"
        return
    if made.shape != expected.shape:
        yield "column", None, f"the shape is {made.shape}, not {expected.shape}"
        return
    for part, found, wanted in (
        ("row labels", made.index, expected.index),
        ("column labels", made.columns, expected.columns),
    ):
        if (one := labels(found)) != (other := labels(wanted)):
            yield part, None, f"{one} is not {other}"
    pairs = zip(_columns(made), _columns(expected), strict=True)
    for place, (one, other) in enumerate((column(one), column(other)) for one, other in pairs):
        if one != other:
            yield "column", place, f"{one} is not {other}"
    attrs = {key: item for key, item in made.attrs.items() if key != "kernelbroker_changes"}
    if repr(attrs) != repr(expected.attrs):
        yield "attrs", None, f"{attrs} is not {expected.attrs}"
    if made.flags.allows_duplicate_labels != expected.flags.allows_duplicate_labels:
        yield "attrs", None, "the flag allows_duplicate_labels differs"


def _columns(frame: pd.DataFrame) -> list[pd.Series]:
    """The columns. Their labels may be unhashable, which the name of a Series must not be."""
    plain = frame.set_axis(range(frame.shape[1]), axis=1)
    return [plain[place] for place in plain.columns]


def labels(index: pd.Index) -> Any:
    """All that is to be equal of row labels or column labels."""
    is_multi = isinstance(index, pd.MultiIndex)
    freq = None
    if isinstance(index, pd.DatetimeIndex | pd.TimedeltaIndex) and index.freq is not None:
        freq = index.freqstr if _has_text(index) else None
    unnamed = index.set_names([None] * index.nlevels)  # a name may be the number of another level
    levels = [unnamed.get_level_values(level) for level in range(index.nlevels)]
    kind = type(index).__name__
    return (
        kind,
        freq,
        [value(name) for name in index.names],
        [(dtype(level.dtype), values(pd.Series(level, dtype=level.dtype))) for level in levels],
        [*map(value, index)] if is_multi and not _has_missing(levels) else None,
    )


def _has_missing(levels: list[pd.Index]) -> bool:
    return any(level.isna().any() for level in levels)


def _has_text(index: Any) -> bool:
    again = index.copy()
    try:
        again.freq = None
        again.freq = index.freqstr
    except ValueError:
        return False
    return bool(again.freq == index.freq)


def column(series: pd.Series) -> Any:
    """All that is to be equal of a column."""
    return dtype(series.dtype), values(series)


def dtype(found: Any) -> Any:
    if isinstance(found, pd.StringDtype):
        return "string", repr(found.na_value)
    if isinstance(found, pd.CategoricalDtype):
        return "category", found.ordered, labels(found.categories)
    if isinstance(found, pd.ArrowDtype):
        return "arrow", str(found.pyarrow_dtype)
    if isinstance(found, pd.SparseDtype):
        return "sparse", dtype(found.subtype), value(found.fill_value)
    if isinstance(found, pd.IntervalDtype):
        return "interval", dtype(found.subtype), found.closed
    if isinstance(found, pd.DatetimeTZDtype):
        return "datetime", found.unit, zone(found.tz)
    return type(found).__name__, str(found)


def zone(found: Any) -> str:
    """pandas compares zones by what they are called, and so does Arrow."""
    return str(found)


def values(series: pd.Series) -> list[Any]:
    if isinstance(series.dtype, pd.CategoricalDtype):
        return list(map(int, series.cat.codes))
    if isinstance(series.dtype, pd.ArrowDtype):
        import pyarrow

        array = pyarrow.chunked_array(series.array.__arrow_array__())
        return list(map(repr, array))
    if isinstance(series.dtype, pd.Float32Dtype | pd.Float64Dtype):
        data, mask = series.array._data, series.array._mask
        return ["NA" if one else repr(number) for number, one in zip(data, mask, strict=True)]
    if series.dtype == object and {*map(type, series.dropna())} == {Decimal}:
        return [
            item.normalize() if type(item) is Decimal else value(item) for item in series.tolist()
        ]
    if isinstance(series.dtype, pd.SparseDtype):
        return [value(item) for item in np.asarray(series.array)]
    return [value(item) for item in series.array]


def value(item: Any) -> Any:
    """A value with its type, as something that equals only itself."""
    kind = f"{type(item).__module__}.{type(item).__qualname__}"
    if isinstance(item, np.ndarray):
        return kind, dtype(item.dtype), item.shape, [value(each) for each in item.ravel()]
    if isinstance(item, set | frozenset):
        return kind, sorted(map(repr, map(value, item)))
    if isinstance(item, dict):
        return kind, [(value(key), value(each)) for key, each in item.items()]
    if isinstance(item, list | tuple):
        return kind, [value(each) for each in item]
    if isinstance(item, pd.Timestamp):
        return kind, item.unit, item._value, zone(item.tz), item.fold
    if isinstance(item, pd.Timedelta):
        return kind, item.unit, item._value
    if isinstance(item, int):
        return kind, hex(item)
    return kind, repr(item)


def previewed(made: pd.DataFrame, expected: pd.DataFrame) -> list[Difference]:
    """Where a preview contradicts the table.

    A column that has the dtype of the table has its values. Any other has values of JSON. Missing values
    are in the same places.
    """
    found: list[Difference] = []
    if made.shape != expected.shape:
        return [("column", None, f"the shape is {made.shape}, not {expected.shape}")]
    pairs = zip(_columns(made), _columns(expected), strict=True)
    for place, (one, other) in enumerate(pairs):
        if dtype(one.dtype) == dtype(other.dtype) and one.dtype != object:
            # JSON has null for NaN and for NA.
            known = [values(each[~_missing(each)]) for each in (one, other)]
            if known[0] != known[1]:
                found.append(("column", place, f"{known[0]} is not {known[1]}"))
        elif isinstance(one.dtype, pd.ArrowDtype):
            found.append(("column", place, f"{one.dtype} is not {other.dtype}"))
        if other.dtype != object and _missing(one).tolist() != _missing(other).tolist():
            found.append(("column", place, f"{one.tolist()} and {other.tolist()}"))
    return found


def _missing(series: pd.Series) -> np.ndarray[Any, Any]:
    """Where NA or NaN is; in some dtypes NaN counts as a value."""
    missing = series.isna().to_numpy(bool)
    if str(series.dtype).lower().startswith(("float", "double")):
        return missing | np.isnan(series.to_numpy("float64", na_value=np.nan))
    if isinstance(series.dtype, pd.CategoricalDtype):
        in_categories = _missing(pd.Series(series.cat.categories))
        return np.array([code < 0 or in_categories[code] for code in series.cat.codes], bool)
    return missing
